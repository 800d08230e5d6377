#include "perf/budget_operations.hpp"

#include <noria/bucketing.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>

#include "bucketing/ring.hpp"
#include "bucketing/ring_lines.hpp"
#include "perf/budget_ranks.hpp"
#include "perf/exit_codes.hpp"
#include "verbs/transport/domain.hpp"
#include "verbs/transport/listener.hpp"

namespace noria::perf {
namespace {

constexpr Nanoseconds kPatience = 60_s;  // valgrind is fifty times slower than the machine
constexpr uint64_t kWarmups = kBudgetWarmups;

[[noreturn]] void give_up(const std::string& why) { throw ToolError(Exit::environment, why); }

template <class Predicate>
void poll_until(Predicate is_true, const char* what) {
  const Nanoseconds deadline = now_ns() + kPatience;
  while (!is_true())
    if (now_ns() > deadline) give_up(std::string("nothing came of: ") + what);
}

// ---- the transport: two domains of one thread -------------------------------------------------

struct Pair {
  Pair() {
    auto params = load_params(environ);
    if (!params) throw usage_error(params.failure());
    auto provider = verbs::open_provider(*params, verbs::Use::collective);
    if (!provider) give_up(provider.failure());
    for (auto* domain : {&left, &right}) {
      auto created = transport::Domain::create(*provider, *params);
      if (!created) give_up("no domain: " + std::string(to_string(created.failure().code())));
      *domain = std::move(*created);
    }
  }

  struct Connection {
    std::unique_ptr<transport::SendConnection> send;
    std::unique_ptr<transport::RecvConnection> recv;
  };
  static Connection connect(transport::Domain& from, transport::Domain& to) {
    const transport::ConnectOptions options{.qps = 1, .sends_lines = true};
    auto listener = transport::Listener::open(to, "127.0.0.1", options);
    if (!listener) give_up("cannot listen on 127.0.0.1");
    auto connector = transport::Connector::start(from, (*listener)->handle(), options);
    if (!connector) give_up("cannot connect to 127.0.0.1");
    Connection made;
    poll_until(
        [&] {
          if (made.send == nullptr) {
            auto finished = (*connector)->try_finish();
            if (!finished) give_up((*connector)->describe());
            made.send = std::move(*finished);
          }
          if (made.recv == nullptr) {
            auto accepted = (*listener)->try_accept();
            if (!accepted) give_up((*listener)->describe());
            made.recv = std::move(*accepted);
          }
          return made.send != nullptr && made.recv != nullptr;
        },
        "a connection");
    return made;
  }
  static transport::Region allocate(transport::Domain& domain, uint64_t bytes,
                                    transport::Watched watched = transport::Watched::no) {
    auto region = domain.allocate(bytes, watched);
    if (!region) give_up("no memory: " + std::string(to_string(region.failure().code())));
    return std::move(*region);
  }

  std::unique_ptr<transport::Domain> left, right;
};

enum class Side { none, send, recv };

// Messages one after the other: a receive is posted, a send is posted, both are waited for. The
// polls that find a completion belong to the side that waits; the device itself is not counted.
void run_messages(uint64_t bytes, Side measured, uint64_t count) {
  Pair pair;
  const Pair::Connection link = Pair::connect(*pair.left, *pair.right);
  const transport::Region from = Pair::allocate(*pair.left, bytes);
  const transport::Region to = Pair::allocate(*pair.right, bytes);
  transport::Request *sent = nullptr, *received = nullptr;
  const auto post_recv = [&] { received = link.recv->try_recv(to, 0, bytes); };
  const auto post_send = [&] { sent = link.send->try_send(from, 0, bytes); };
  const auto take_recv = [&] {
    while (!received->is_done()) pair.right->poll();
    link.recv->release(received);
  };
  const auto take_send = [&] {
    while (!sent->is_done()) pair.left->poll();
    link.send->release(sent);
  };
  const auto message = [&](Side side) {
    side == Side::recv ? noria_measured(post_recv) : post_recv();
    if (received == nullptr) give_up("a receive was not taken: " + link.recv->describe());
    side == Side::send ? noria_measured(post_send) : post_send();
    if (sent == nullptr) give_up("a send found no credit: " + link.send->describe());
    side == Side::recv ? noria_measured(take_recv) : take_recv();
    side == Side::send ? noria_measured(take_send) : take_send();
  };
  for (uint64_t i = 0; i < kWarmups; ++i) message(Side::none);
  for (uint64_t i = 0; i < count; ++i) message(measured);
}

void run_reads(uint64_t count) {
  constexpr uint64_t kBytes = 8;
  Pair pair;
  const Pair::Connection link = Pair::connect(*pair.left, *pair.right);
  const transport::Region from = Pair::allocate(*pair.left, kBytes);
  const transport::Region to = Pair::allocate(*pair.right, kBytes);
  const transport::RemoteRegion remote = from.remote();
  bool is_taken = true;
  const auto read = [&] {
    transport::Request* request = link.recv->try_read(to, 0, remote, 0, kBytes);
    is_taken = request != nullptr;
    if (!is_taken) return;
    while (!request->is_done()) pair.right->poll();
    link.recv->release(request);
  };
  for (uint64_t i = 0; i < kWarmups && is_taken; ++i) read();
  for (uint64_t i = 0; i < count && is_taken; ++i) noria_measured(read);
  if (!is_taken) give_up("a read was not taken: " + link.recv->describe());
}

// ---- the ring: two ranks of one thread --------------------------------------------------------

// Both ranks' work for an all-reduce of 8 bytes, without the threads and the C API around it.
void run_ring(uint64_t count) {
  using bucketing::Ring;
  Pair pair;
  bucketing::RingLinks links[2];
  transport::Domain* const domains[] = {pair.left.get(), pair.right.get()};
  for (size_t rank = 0; rank < 2; ++rank) {
    const size_t right = 1 - rank;
    Pair::Connection reduce = Pair::connect(*domains[rank], *domains[right]);
    Pair::Connection gather = Pair::connect(*domains[rank], *domains[right]);
    links[rank].reduce_out = std::move(reduce.send);
    links[right].reduce_in = std::move(reduce.recv);
    links[rank].gather_out = std::move(gather.send);
    links[right].gather_in = std::move(gather.recv);
    links[right].lines_in =
        Pair::allocate(*domains[right], bucketing::RingLines::bytes_of(2), transport::Watched::yes);
    links[rank].lines_out = links[right].lines_in.remote();
  }
  std::unique_ptr<Ring> rings[2];
  int64_t values[2] = {1, 2}, sums[2] = {};
  bucketing::Collective collectives[2];
  for (uint32_t rank = 0; rank < 2; ++rank) {
    auto ring = Ring::over(*domains[rank], {rank, 2}, std::move(links[rank]),
                           bucketing::RingFetch::by_memory, nullptr);
    if (!ring) give_up(ring.failure().text);
    rings[rank] = std::move(*ring);
    bucketing::Part part;
    part.in = reinterpret_cast<const std::byte*>(&values[rank]);
    part.out = reinterpret_cast<std::byte*>(&sums[rank]);
    part.count = 1;
    part.dtype = NORIA_INT64;
    collectives[rank].parts = {part};
    bucketing::prepare(collectives[rank], 2);
  }
  bool is_good = true;
  const auto all_reduce = [&] {
    for (size_t rank = 0; rank < 2; ++rank) rings[rank]->start(collectives[rank]);
    bool is_done[2] = {};
    while (is_good && !(is_done[0] && is_done[1]))
      for (size_t rank = 0; rank < 2; ++rank) {
        if (is_done[rank]) continue;
        const Ring::Progress progress = rings[rank]->advance();
        is_done[rank] = progress == Ring::Progress::finished;
        is_good &= progress != Ring::Progress::failed;
      }
  };
  for (uint64_t i = 0; i < kWarmups; ++i) all_reduce();
  for (uint64_t i = 0; i < count; ++i) noria_measured(all_reduce);
  if (!is_good || sums[0] != 3 || sums[1] != 3) give_up("the ring's sum is wrong");
}

// ---- the C API: two ranks as threads ----------------------------------------------------------

constexpr uint64_t kElements = 64;  // 256 bytes: the copy of them is counted too

void run_gradients(bool arena, uint32_t tensors, uint64_t count) {
  run_rank_pair(NORIA_STREAM_HOST, [&](noria_comm* comm, int rank) {
    noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
    config.arena = arena ? 1 : 0;
    config.op = NORIA_AVG;
    noria_reducer* reducer = nullptr;
    require(noria_reducer_create(comm, &config, &reducer), "noria_reducer_create");
    for (uint32_t i = 0; i < tensors; ++i) {
      const std::string name = "layer" + std::to_string(i);
      noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
      tensor.name = name.c_str();
      tensor.dtype = NORIA_FLOAT32;
      tensor.numel = kElements;
      uint32_t added = 0;
      require(noria_reducer_add(reducer, &tensor, &added), "noria_reducer_add");
    }
    require(noria_reducer_seal(reducer), "noria_reducer_seal");
    std::vector<std::vector<float>> gradients(tensors, std::vector<float>(kElements, 1.0F));
    const uint64_t steps = count / std::max<uint32_t>(tensors, 1);
    for (uint64_t step = 0; step < steps + 1; ++step) {
      require(noria_step_begin(reducer, 0), "noria_step_begin");
      for (uint32_t i = tensors; i-- > 0;) {
        noria_status status = NORIA_OK;
        const void* gradient = arena ? nullptr : gradients[i].data();
        const auto ready = [&] { status = noria_grad_ready(reducer, i, gradient, nullptr); };
        rank == 0 && step > 0 ? noria_measured(ready) : ready();
        require(status, "noria_grad_ready");
      }
      require(noria_step_end(reducer, nullptr, nullptr), "noria_step_end");
    }
    noria_reducer_destroy(reducer);
  });
}

// The call and the look that finds it done; its ring is driven by the communicators' own threads.
void run_all_reduces(uint64_t count) {
  run_rank_pair(NORIA_STREAM_HOST, [&](noria_comm* comm, int rank) {
    int64_t value = 1, sum = 0;
    noria_work* work = nullptr;
    noria_status status = NORIA_OK;
    const auto call = [&] {
      status = noria_all_reduce(comm, &value, &sum, 1, NORIA_INT64, NORIA_SUM, nullptr, &work);
    };
    const auto finish = [&] {
      status = noria_work_test(work);
      noria_work_release(work);
    };
    for (uint64_t i = 0; i < kWarmups + count; ++i) {
      const bool is_measured = rank == 0 && i >= kWarmups;
      is_measured ? noria_measured(call) : call();
      require(status, "noria_all_reduce");
      require(noria_work_wait(work, 0), "noria_work_wait");
      is_measured ? noria_measured(finish) : finish();
      require(status, "noria_work_test");
      if (sum != 2) give_up("the sum is wrong");
    }
  });
}

}  // namespace

const std::vector<Operation>& budgeted_operations() {
  static const std::vector<Operation> list = [] {
    std::vector<Operation> all{
        {"send_8B", "SendConnection::try_send of 8 bytes and the polls until it is done", 1000,
         [](uint64_t n) { run_messages(8, Side::send, n); }},
        {"recv_8B", "RecvConnection::try_recv of 8 bytes and the polls until it is done", 1000,
         [](uint64_t n) { run_messages(8, Side::recv, n); }},
        {"send_512K", "the same of 512 KiB over one queue pair", 200,
         [](uint64_t n) { run_messages(512 << 10, Side::send, n); }},
        {"recv_512K", "the same of 512 KiB over one queue pair", 200,
         [](uint64_t n) { run_messages(512 << 10, Side::recv, n); }},
        {"read_8B", "RecvConnection::try_read of 8 bytes and the polls until it is done", 1000,
         run_reads},
        {"grad_ready_arena", "noria_grad_ready, gradients in place; 200 tensors of 256 bytes", 2000,
         [](uint64_t n) { run_gradients(true, 200, n); }},
        {"grad_ready_copy", "noria_grad_ready, with the copy of 256 bytes", 2000,
         [](uint64_t n) { run_gradients(false, 200, n); }},
        {"grad_ready_arena_100K", "the same in place, of 100 000 tensors", 100'000,
         [](uint64_t n) { run_gradients(true, 100'000, n); }},
        {"grad_ready_copy_100K", "the same with copies, of 100 000 tensors", 100'000,
         [](uint64_t n) { run_gradients(false, 100'000, n); }},
        {"all_reduce_8B_call", "noria_all_reduce of 8 bytes, and noria_work_test when it is done",
         200, run_all_reduces},
        {"all_reduce_8B_ring", "the ring's work for it, both ranks together", 500, run_ring},
    };
    for (const Operation& operation : plugin_operations()) all.push_back(operation);
    for (const Operation& operation : gpu_operations()) all.push_back(operation);
    return all;
  }();
  return list;
}

}  // namespace noria::perf
