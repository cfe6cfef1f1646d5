#include "check.h"

#include <utility>
#include <vector>

namespace ps_server {
namespace {

using Test = std::pair<const char*, void (*)()>;

std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

}  // namespace

Registration::Registration(const char* name, void (*run)()) { Tests().emplace_back(name, run); }

}  // namespace ps_server

int main() {
  for (const auto& [name, run] : ps_server::Tests()) {
    std::cout << name << std::endl;  // flushed, so that a crash is told from the test before
    run();
  }
  std::cout << ps_server::Tests().size() << " native tests passed" << std::endl;
}
