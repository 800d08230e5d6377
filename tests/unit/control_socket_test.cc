#include "verbs/transport/control.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <vector>

namespace noria::transport {
namespace {

// One end is a ControlSocket, the other a plain descriptor.
class ControlSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    control_ = ControlSocket(Socket(fds[0]));
    peer_ = Socket(fds[1]);
  }
  void write_bytes(const void* data, size_t bytes) {
    ASSERT_EQ(::write(peer_.fd(), data, bytes), static_cast<ssize_t>(bytes));
  }

  ControlSocket control_;
  Socket peer_;
};

TEST_F(ControlSocketTest, Collects_a_message_that_comes_byte_by_byte) {
  wire::Refuse refuse;
  refuse.listener_value = 4711;
  std::vector<char> bytes(sizeof refuse);
  std::memcpy(bytes.data(), &refuse, sizeof refuse);
  for (const char byte : bytes) {
    EXPECT_EQ(control_.pump_receive(), Progress::pending);
    write_bytes(&byte, 1);
  }
  ASSERT_EQ(control_.pump_receive(), Progress::done);
  EXPECT_EQ(control_.read<wire::Refuse>().listener_value, 4711u);
}

TEST_F(ControlSocketTest, Keeps_two_messages_apart_that_came_together) {
  wire::Ready ready;
  wire::Close close;
  write_bytes(&ready, sizeof ready);
  write_bytes(&close, sizeof close);
  ASSERT_EQ(control_.pump_receive(), Progress::done);
  EXPECT_EQ(control_.header().type, wire::Type::ready);
  ASSERT_EQ(control_.pump_receive(), Progress::done);
  EXPECT_EQ(control_.header().type, wire::Type::close);
  EXPECT_EQ(control_.pump_receive(), Progress::pending);
}

TEST_F(ControlSocketTest, Calls_garbage_what_cannot_begin_a_message) {
  write_bytes("GET", 3);
  EXPECT_EQ(control_.pump_receive(), Progress::pending);
  write_bytes(" ", 1);
  EXPECT_EQ(control_.pump_receive(), Progress::garbage);
}

TEST_F(ControlSocketTest, Refuses_lengths_that_no_message_has) {
  for (const uint32_t bytes : {0u, 15u, 1025u, 0xffffffffu}) {
    SetUp();
    const wire::Control header{.type = wire::Type::hello, .bytes = bytes};
    write_bytes(&header, sizeof header);
    EXPECT_EQ(control_.pump_receive(), Progress::garbage) << bytes;
  }
}

TEST_F(ControlSocketTest, Random_bytes_never_make_a_message) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    SetUp();
    std::vector<unsigned char> bytes(1 + random() % 2000);
    for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
    write_bytes(bytes.data(), bytes.size());
    peer_ = Socket();
    const Progress progress = control_.pump_receive();
    EXPECT_TRUE(progress == Progress::garbage || progress == Progress::closed);
  }
}

TEST_F(ControlSocketTest, Says_when_the_other_end_is_closed) {
  const wire::Ready ready;
  write_bytes(&ready, 5);
  EXPECT_EQ(control_.pump_receive(), Progress::pending);
  peer_ = Socket();
  EXPECT_EQ(control_.pump_receive(), Progress::closed);
  control_.send(ready);
  EXPECT_EQ(control_.pump_send(), Progress::closed);
}

TEST_F(ControlSocketTest, A_short_message_reads_as_zeros_beyond_its_end) {
  wire::Control header{.type = wire::Type::close, .bytes = sizeof header};
  write_bytes(&header, sizeof header);
  ASSERT_EQ(control_.pump_receive(), Progress::done);
  EXPECT_EQ(control_.read<wire::Close>().is_failure, 0);
}

}  // namespace
}  // namespace noria::transport
