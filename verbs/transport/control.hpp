// ControlSocket: control messages of wire.hpp over one TCP socket, without blocking.
//
// One message is sent and one received at a time. send() takes a copy and pump_send() pushes it
// out; pump_receive() collects a whole message, judged by its header alone: bytes that cannot begin
// a control message of any version are garbage at once, however few.
//
// Threads: one at a time per object.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "verbs/transport/socket.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {

enum class Progress : uint8_t { pending, done, closed, garbage };

class ControlSocket {
 public:
  ControlSocket() = default;
  explicit ControlSocket(Socket socket) : socket_(std::move(socket)) {}

  template <class Message>
  void send(const Message& message) {
    static_assert(std::is_trivially_copyable_v<Message> &&
                  sizeof message <= wire::kMaxControlBytes);
    std::memcpy(out_.data(), &message, sizeof message);
    out_size_ = sizeof message;
    out_done_ = 0;
  }
  Progress pump_send();
  Progress pump_receive();  // done: message() is valid until the next pump_receive()

  // The header of the message received.
  wire::Control header() const { return read<wire::Control>(); }
  // The message as `Message`; fields that it was too short to carry are zero.
  template <class Message>
  Message read() const {
    static_assert(std::is_trivially_copyable_v<Message>);
    Message message{};
    const size_t bytes = in_size_ < sizeof message ? in_size_ : sizeof message;
    std::memcpy(static_cast<void*>(&message), in_.data(), bytes);
    return message;
  }

  const Socket& socket() const { return socket_; }

 private:
  Socket socket_;
  std::array<std::byte, wire::kMaxControlBytes> out_{}, in_{};
  size_t out_size_ = 0, out_done_ = 0;
  size_t in_size_ = 0;
  bool is_complete_ = false;
};

}  // namespace noria::transport
