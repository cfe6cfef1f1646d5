// What a loaded library calls: functions of other libraries that it imports.
//
// A library reaches them by a table of addresses, which the loader fills. To write
// another address there gives that library, and no other, another function.

#ifndef PS_SERVER_NATIVE_IMPORT_TABLE_H_
#define PS_SERVER_NATIVE_IMPORT_TABLE_H_

#include <cstddef>
#include <string>

namespace ps_server {

// Has every library that is loaded from below `folder` (its path ends in a slash) call
// `function` where it imports `name`, and returns how many do now. Not thread-safe:
// nobody may load or unload libraries meanwhile. Elsewhere than on Linux, 0.
size_t ReplaceImport(const std::string& folder, const char* name, void* function);

}  // namespace ps_server

#endif  // PS_SERVER_NATIVE_IMPORT_TABLE_H_
