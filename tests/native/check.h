// What the native tests are written with: TEST, CHECK, CHECK_EQ and CHECK_THROWS.
//
// A check that fails prints where and what, and ends the process with 1, from any
// thread. check.cc has main(), which runs the tests in the order of their files.

#ifndef TESTS_NATIVE_CHECK_H_
#define TESTS_NATIVE_CHECK_H_

#include <cstdlib>
#include <iostream>

namespace ps_server {

struct Registration {
  Registration(const char* name, void (*run)());
};

template <typename Left, typename Right>
void CheckEqual(const Left& left, const Right& right, const char* text, const char* file,
                int line) {
  if (left == right) return;
  std::cerr << file << ":" << line << ": " << text << ", got " << left << " and " << right
            << std::endl;
  std::_Exit(1);
}

}  // namespace ps_server

#define TEST(name)                                                         \
  static void name();                                                      \
  static const ::ps_server::Registration name##Registration(#name, &name); \
  static void name()

#define CHECK_EQ(left, right) \
  ::ps_server::CheckEqual((left), (right), #left " == " #right, __FILE__, __LINE__)

#define CHECK(holds) ::ps_server::CheckEqual(bool(holds), true, #holds, __FILE__, __LINE__)

#define CHECK_THROWS(type, call)                 \
  do {                                           \
    bool has_thrown = false;                     \
    try {                                        \
      (void)(call);                              \
    } catch (const type&) {                      \
      has_thrown = true;                         \
    }                                            \
    CHECK(has_thrown && #call " throws " #type); \
  } while (false)

#endif  // TESTS_NATIVE_CHECK_H_
