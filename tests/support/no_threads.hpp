// NoThreads: while it lives, this process gets no further thread, as one that has all it may have:
// no stack is found for it.
//
// Threads: one at a time in a process.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace noria::test {

class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t endless;
    EXPECT_EQ(pthread_attr_init(&endless), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&endless, size_t{1} << 47), 0);  // all addresses there are
    EXPECT_EQ(pthread_setattr_default_np(&endless), 0);
    pthread_attr_destroy(&endless);
  }
  ~NoThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace noria::test
