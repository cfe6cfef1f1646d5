#include "import_table.h"

#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace ps_server {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobal = R_X86_64_GLOB_DAT,
                   kAddress = R_X86_64_64;
#else
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobal = R_AARCH64_GLOB_DAT,
                   kAddress = R_AARCH64_ABS64;
#endif

struct Search {
  const std::string& folder;
  const char* name;
  void* function;
  size_t num_libraries = 0;
};

// The parts of a library that say what it imports.
struct Imports {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  struct {
    const ElfW(Rela) * first = nullptr;
    size_t bytes = 0;
  } lazy, eager;
};

Imports ImportsOf(const dl_phdr_info& library) {
  Imports imports;
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = library.dlpi_phdr[i];
    if (header.p_type != PT_DYNAMIC) continue;
    const auto* entry = reinterpret_cast<const ElfW(Dyn)*>(library.dlpi_addr + header.p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
      // glibc has made addresses of these offsets; another C library leaves them.
      const uintptr_t value = entry->d_un.d_ptr;
      const uintptr_t address = value < library.dlpi_addr ? value + library.dlpi_addr : value;
      switch (entry->d_tag) {
        case DT_SYMTAB:
          imports.symbols = reinterpret_cast<const ElfW(Sym)*>(address);
          break;
        case DT_STRTAB:
          imports.names = reinterpret_cast<const char*>(address);
          break;
        case DT_JMPREL:
          imports.lazy.first = reinterpret_cast<const ElfW(Rela)*>(address);
          break;
        case DT_PLTRELSZ:
          imports.lazy.bytes = entry->d_un.d_val;
          break;
        case DT_RELA:
          imports.eager.first = reinterpret_cast<const ElfW(Rela)*>(address);
          break;
        case DT_RELASZ:
          imports.eager.bytes = entry->d_un.d_val;
          break;
        default:
          break;
      }
    }
  }
  return imports;
}

// Whether the loader has made a page read-only once it was filled.
bool IsSealed(const dl_phdr_info& library, uintptr_t address) {
  for (int i = 0; i < library.dlpi_phnum; ++i) {
    const ElfW(Phdr) & header = library.dlpi_phdr[i];
    const uintptr_t start = library.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_RELRO && start <= address && address < start + header.p_memsz) {
      return true;
    }
  }
  return false;
}

bool Write(const dl_phdr_info& library, uintptr_t address, void* function) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const start = reinterpret_cast<void*>(address & ~(page - 1));
  const bool is_sealed = IsSealed(library, address);
  if (is_sealed && mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  *reinterpret_cast<void* volatile*>(address) = function;
  if (is_sealed) mprotect(start, page, PROT_READ);
  return true;
}

int Visit(dl_phdr_info* library, size_t, void* data) {
  auto* const search = static_cast<Search*>(data);
  if (std::strncmp(library->dlpi_name, search->folder.c_str(), search->folder.size()) != 0) {
    return 0;
  }
  const Imports imports = ImportsOf(*library);
  if (imports.symbols == nullptr || imports.names == nullptr) return 0;
  bool is_replaced = false;
  for (const auto& table : {imports.lazy, imports.eager}) {
    for (size_t i = 0; i < table.bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela) & entry = table.first[i];
      const uint32_t kind = ELF64_R_TYPE(entry.r_info);
      if (kind != kJumpSlot && kind != kGlobal && kind != kAddress) continue;
      const ElfW(Sym) & symbol = imports.symbols[ELF64_R_SYM(entry.r_info)];
      if (std::strcmp(imports.names + symbol.st_name, search->name) != 0) continue;
      is_replaced |= Write(*library, library->dlpi_addr + entry.r_offset, search->function);
    }
  }
  search->num_libraries += is_replaced;
  return 0;
}

}  // namespace

size_t ReplaceImport(const std::string& folder, const char* name, void* function) {
  Search search{folder, name, function};
  dl_iterate_phdr(&Visit, &search);
  return search.num_libraries;
}

}  // namespace ps_server

#else

namespace ps_server {

size_t ReplaceImport(const std::string&, const char*, void*) { return 0; }

}  // namespace ps_server

#endif
