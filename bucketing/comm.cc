#include "bucketing/comm.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/value_text.hpp"
#include "bucketing/bootstrap.hpp"
#include "bucketing/control_wire.hpp"
#include "bucketing/ring_line.hpp"
#include "verbs/transport/interfaces.hpp"

namespace noria::bucketing {
namespace {

// Long enough for ranks that end together, and no burden where one ends alone.
constexpr Nanoseconds kLeave = 1_s;
// With a bad NORIA_ variable this rank cannot take part, but it can still meet the others and say
// so.
Params params_to_meet_by() {
  return load_params_named(environ, {"NORIA_ROOT", "NORIA_SOCKET_IFNAME"});
}

// As noria_comm_info says it.
uint32_t reads_of(RingFetch fetch) {
  switch (fetch) {
    case RingFetch::message: return 0;
    case RingFetch::read: return 1;
    case RingFetch::by_memory: return 2;
  }
  return 0;
}

Nanoseconds milliseconds(uint32_t given, uint64_t otherwise) {
  return static_cast<Nanoseconds>(given != 0 ? given : otherwise) * 1'000'000;
}

// As split()'s ranks tell it to each other.
noria_unique_id unique_id_of(const std::string& bytes) {
  noria_unique_id id{};
  std::memcpy(id.bytes, bytes.data(), std::min(bytes.size(), sizeof id.bytes));
  return id;
}

Outcome<std::unique_ptr<ControlPlane>> meet(const Rendezvous& rendezvous, bool has_id,
                                            Nanoseconds deadline) {
  ControlPlane::Options options{.rank = rendezvous.rank,
                                .size = rendezvous.size,
                                .root_host = rendezvous.host,
                                .root_port = rendezvous.port,
                                .token_low = rendezvous.token_low,
                                .token_high = rendezvous.token_high,
                                .deadline = deadline};
  Fd listener;
  if (has_id && rendezvous.rank == 0) {
    NORIA_TRY_ASSIGN(listener, open_reserved_listener(rendezvous));
  } else if (has_id) {
    drop_reservation(rendezvous);
  }
  options.listener_fd = listener.release();
  return ControlPlane::join(options);
}

}  // namespace

Comm::Comm(const Params& params, int32_t rank, int32_t size)
    : params_(params), rank_(rank), size_(size) {}

Comm::~Comm() { end(); }

void Comm::end() {
  const bool is_good = end_work_on_gpu();
  if (engine_ != nullptr && control_ != nullptr && !engine_->failed())
    control_->leave(now_ns() + kLeave);
  if (gpu_ != nullptr && engine_ != nullptr)
    gpu_->leave(is_good && !engine_->failed(), now_ns() + kLeave);
  if (engine_ != nullptr) engine_->stop();
  if (control_ != nullptr) control_->hang_up();
}

// ---- life ---------------------------------------------------------------------------------------

Outcome<std::unique_ptr<Comm>> Comm::create(const noria_comm_config& config) {
  return make(config, "");
}

Outcome<std::unique_ptr<Comm>> Comm::make(const noria_comm_config& config,
                                          const std::string& trace_name) {
  watch_forks();
  auto loaded = load_params(environ);
  const std::string bad_params = loaded ? "" : loaded.failure();
  const Params params = loaded ? *loaded : params_to_meet_by();
  const auto rendezvous = config.id != nullptr
                              ? read_unique_id(*config.id, config.rank, config.size)
                              : rendezvous_from_launcher(params, config.rank, config.size);
  if (!rendezvous)
    return bad_params.empty() ? rendezvous.failure() : Failure{NORIA_E_ARG, bad_params};

  std::unique_ptr<Comm> comm(new Comm(params, rendezvous->rank, rendezvous->size));
  comm->trace_name_ = trace_name;
  comm->start_timeout_ = milliseconds(config.start_timeout_ms, params.start_timeout_ms);
  comm->collective_timeout_ =
      milliseconds(config.collective_timeout_ms, params.collective_timeout_ms);
  if (comm->size_ == 1) {
    if (config.id != nullptr) drop_reservation(*rendezvous);
    if (!bad_params.empty()) return Failure{NORIA_E_ARG, bad_params};
    NORIA_TRY(comm->open_gpu(config));
    NORIA_TRY(comm->start_timeline(Timeline::make_group(), {}));
    NORIA_TRY(comm->start_engine(nullptr, nullptr));
    NORIA_TRY(comm->join_gpus(now_ns() + comm->start_timeout_));
    return comm;
  }
  const Nanoseconds deadline = now_ns() + comm->start_timeout_;
  NORIA_TRY_ASSIGN(comm->control_, meet(*rendezvous, config.id != nullptr, deadline));
  NORIA_TRY(comm->connect(config, bad_params, deadline));
  return comm;
}

Outcome<std::vector<std::string>> Comm::gather(const std::string& what, const std::string& bytes) {
  if (control_ == nullptr) return std::vector<std::string>{bytes};
  return control_->all_gather(what, bytes, now_ns() + start_timeout_);
}

Outcome<std::unique_ptr<Comm>> Comm::split(int32_t color, int32_t key) {
  NORIA_TRY(status());
  PayloadWriter wish;
  wish.put_i32(color);
  wish.put_i32(key);
  NORIA_TRY_ASSIGN(const std::vector<std::string> wishes, gather("split", wish.bytes()));
  const std::string trace_name = Timeline::split_name(trace_name_, splits_++, color);
  std::vector<std::pair<int32_t, int32_t>> members;  // key, rank here
  for (int32_t rank = 0; rank < size_; ++rank) {
    PayloadReader reader(wishes[static_cast<size_t>(rank)]);
    const int32_t wanted = reader.take_i32(), position = reader.take_i32();
    if (wanted < NORIA_SPLIT_NOCOLOR)
      return Failure{NORIA_E_ARG,
                     on_rank(rank, "noria_comm_split: color " + std::to_string(wanted) +
                                       ": it is 0 or more, or NORIA_SPLIT_NOCOLOR")};
    if (wanted == color) members.emplace_back(position, rank);
  }
  std::sort(members.begin(), members.end());
  const auto self = std::find(members.begin(), members.end(), std::pair{key, rank_});
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  config.rank = static_cast<int32_t>(self - members.begin());
  config.size = static_cast<int32_t>(members.size());

  // The first of each color says where its ranks meet: where the parent's ring reaches it.
  const bool is_first = color != NORIA_SPLIT_NOCOLOR && config.rank == 0 && config.size > 1;
  const auto made = [&]() -> Outcome<std::string> {
    if (!is_first) return std::string();
    NORIA_TRY_ASSIGN(const noria_unique_id id, make_unique_id_at(host_));
    return std::string(id.bytes, sizeof id.bytes);
  }();
  PayloadWriter meeting;
  meeting.put_i32(made ? NORIA_OK : made.failure().code);
  meeting.put_text(made ? *made : made.failure().text);
  const auto meetings = gather("split: where to meet", meeting.bytes());
  if (!meetings) {
    if (is_first && made) drop_reservation(*read_unique_id(unique_id_of(*made), 0, config.size));
    return meetings.failure();
  }
  if (color == NORIA_SPLIT_NOCOLOR) return std::unique_ptr<Comm>();

  const int32_t first = members.front().second;
  PayloadReader reader((*meetings)[static_cast<size_t>(first)]);
  const int32_t code = reader.take_i32();
  const std::string text = reader.take_text();
  if (code != NORIA_OK) return Failure{code, on_rank(first, text)};
  const noria_unique_id id = unique_id_of(text);
  config.id = config.size > 1 ? &id : nullptr;
  config.start_timeout_ms = static_cast<uint32_t>(start_timeout_ / 1'000'000);
  config.collective_timeout_ms = static_cast<uint32_t>(collective_timeout_ / 1'000'000);
  if (gpu_ != nullptr) {
    config.device_kind = NORIA_STREAM_CUDA;
    config.device = gpu_->device().ordinal();
  }
  return make(config, trace_name);
}

Outcome<Ok> Comm::connect(const noria_comm_config& config, const std::string& bad_params,
                          Nanoseconds deadline) {
  host_ = control_->local_host();
  std::unique_ptr<transport::Domain> domain;
  const auto set_up = [&]() -> Outcome<Ok> {
    if (!bad_params.empty()) return Failure{NORIA_E_ARG, bad_params};
    if (transport::is_interface_asked_for(params_)) {
      auto interface = transport::choose_interface(transport::list_interfaces(), params_);
      if (!interface) return Failure{NORIA_E_NET, interface.failure()};
      host_ = interface->host;
    }
    NORIA_TRY_ASSIGN(domain, open_device());
    return open_gpu(config);
  };
  NORIA_TRY(agree("open the device", set_up(), deadline));
  if (is_traced_) {
    NORIA_TRY_ASSIGN(const ClockOffset clock, measure_clock(*control_, read_boot_id(), deadline));
    NORIA_TRY_ASSIGN(const std::vector<std::string> groups,
                     control_->all_gather("name the trace", Timeline::make_group(), deadline));
    NORIA_TRY(agree("open the trace", start_timeline(groups[0], clock), deadline));
  }

  auto ring = Ring::connect(*domain, *control_, params_, host_, deadline);
  if (!ring) return control_->settle(ring.failure());
  NORIA_TRY(agree("start", start_engine(std::move(domain), std::move(*ring)), deadline));
  NORIA_TRY(try_ring(deadline));
  return join_gpus(deadline);
}

// A connection may stand that carries nothing, as by a wrong GID or a closed port of a switch. That
// is to be told here, and not by the first collective's time-out, which is much longer.
Outcome<Ok> Comm::try_ring(Nanoseconds deadline) {
  std::array<int64_t, 512> zeros{};  // too many for a line: they go over all connections
  auto* const place = reinterpret_cast<std::byte*>(zeros.data());
  const Part part{
      .in = place, .out = place, .count = zeros.size(), .dtype = NORIA_INT64, .op = NORIA_MAX};
  Collective trial;
  fill(trial, Kind::all_reduce, 0, &part);
  trial.timeout_ns = std::max(deadline - now_ns(), 100_ms);
  Outcome<Ok> passed = engine_->run(trial);
  // Where one rank's packets are lost, another may be through all the same. And a rank that went on
  // alone might fail, or die, while another is still in here, whose start would then fail of that.
  if (passed.is_ok()) passed = agree("try the ring", passed, deadline + kSettling);
  if (passed.is_ok()) {
    engine_->ring()->start_counting();
    return passed;
  }
  return Failure{passed.failure().code,
                 "the ranks met, but their first exchange over the devices failed: " +
                     passed.failure().text + "; noria_info shows a host's ports and GIDs"};
}

Outcome<std::unique_ptr<transport::Domain>> Comm::open_device() {
  auto provider = verbs::open_provider(params_, verbs::Use::collective);
  if (!provider) return Failure{NORIA_E_DEVICE, provider.failure()};
  provider_ = std::move(*provider);
  auto domain = transport::Domain::create(provider_, params_, transport::kMaxRails);
  if (!domain) {
    const Status status = domain.failure();
    return Failure{to_noria_status(status.code()),
                   "cannot use the RDMA device of " + provider_->library_path() + ": " +
                       cause_of(status) +
                       (provider_->kind() == verbs::ProviderKind::software
                            ? "; look at the limits of this process (ulimit -a)"
                            : "; NORIA_SOFT=1 takes the software HCA")};
  }
  if (rank_ == 0 && !provider_->notice().empty())
    log(LogLevel::info, "%s", provider_->notice().c_str());
  return std::move(*domain);
}

Outcome<Ok> Comm::start_engine(std::unique_ptr<transport::Domain> domain,
                               std::unique_ptr<Ring> ring) {
  NORIA_TRY_ASSIGN(engine_, Engine::create(std::move(domain), std::move(ring), control_.get(),
                                           collective_timeout_, &open_steps_));
  return Ok{};
}

Outcome<Ok> Comm::start_timeline(const std::string& group, const ClockOffset& clock) {
  if (params_.trace.empty()) return Ok{};
  if (trace_name_.empty()) trace_name_ = Timeline::next_name();
  NORIA_TRY_ASSIGN(
      timeline_, Timeline::create(params_.trace + trace_name_,
                                  {.rank = rank_, .size = size_, .group = group, .clock = clock}));
  return Ok{};
}

Outcome<Ok> Comm::agree(const std::string& what, const Outcome<Ok>& mine, Nanoseconds deadline) {
  if (control_ == nullptr) return mine;
  PayloadWriter report;
  report.put_i32(mine ? NORIA_OK : mine.failure().code);
  report.put_text(mine ? "" : mine.failure().text);
  report.put_i32(params_.trace.empty() ? 0 : 1);
  report.put_i32(gpu_ != nullptr ? 1 : 0);
  NORIA_TRY_ASSIGN(const std::vector<std::string> reports,
                   control_->all_gather(what, report.bytes(), deadline));
  std::optional<size_t> of_host, of_gpu;  // the last rank of each kind
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    PayloadReader reader(reports[rank]);
    const int32_t code = reader.take_i32();
    const std::string text = reader.take_text();
    is_traced_ |= reader.take_i32() != 0;
    if (code != NORIA_OK) return Failure{code, on_rank(static_cast<int32_t>(rank), text)};
    (reader.take_i32() != 0 ? of_gpu : of_host) = rank;
  }
  if (of_host && of_gpu)
    return Failure{NORIA_E_MISMATCH, "the device_kind of rank " + std::to_string(*of_gpu) +
                                         " is NORIA_STREAM_CUDA, and that of rank " +
                                         std::to_string(*of_host) +
                                         " NORIA_STREAM_HOST: it is the same on all ranks"};
  return Ok{};
}

void Comm::abort(const std::string& why) {
  engine_->fail({NORIA_E_ABORTED, on_rank(rank_, "noria_comm_abort()" +
                                                     (why.empty() ? "" : ": " + printable(why)))});
}

Outcome<Ok> Comm::status() const {
  if (!engine_->failed()) return Ok{};
  return engine_->failure();
}

// ---- collectives --------------------------------------------------------------------------------

Outcome<Ok> Comm::check_no_step_open() const {
  if (!open_steps_.any()) return Ok{};
  return Failure{NORIA_E_STATE,
                 "a step of a reducer is open on this communicator: end it before, or use "
                 "another communicator"};
}

void Comm::fill(Collective& collective, Kind kind, int32_t root, const Part* part) const {
  collective.kind = kind;
  collective.root = root;
  if (part != nullptr) collective.parts.push_back(*part);
  if (!fits_line(kind, part)) prepare(collective, static_cast<uint32_t>(size_));
}

Outcome<Ok> Comm::run(Kind kind, int32_t root, const Part* part) {
  NORIA_TRY(check_no_step_open());
  if (fits_line(kind, part)) {
    NORIA_TRY_ASSIGN(const bool is_done, engine_->try_run(kind, part));
    if (is_done) return Ok{};
  }
  Collective collective;
  fill(collective, kind, root, part);
  return engine_->run(collective);
}

Outcome<noria_work*> Comm::launch(Kind kind, int32_t root, const Part* part) {
  NORIA_TRY(check_no_step_open());
  sweep_works();
  works_.emplace_back();
  noria_work& work = works_.back();
  work.comm = shared_from_this();
  work.engine = engine_.get();
  fill(work.collective, kind, root, part);
  engine_->submit(work.collective, true);
  return &work;
}

void Comm::sweep_works() {
  works_.remove_if([this](noria_work& work) {
    // acquire: pairs with noria_work_release(); the releasing thread's last look is over.
    if (!work.is_released.load(std::memory_order_acquire)) return false;
    if (!work.device_work) return work.collective.is_done();
    gpu_->events().give_back(std::move(*work.device_work).take_event());
    return true;
  });
}

// ---- what others may know -----------------------------------------------------------------------

noria_comm_info Comm::info() const {
  noria_comm_info info{};
  info.rank = rank_;
  info.size = size_;
  const auto put = [](char* field, size_t capacity, const std::string& text) {
    std::snprintf(field, capacity, "%s", text.c_str());
  };
  if (gpu_ != nullptr) {
    put(info.gpu, sizeof info.gpu, gpu_->device().name());
    info.nccl = gpu_->nccl().owner() == NcclCollective::Owner::noria ? 1
                : gpu_->nccl().was_aborted()                         ? 3
                                                                     : 2;
    info.nccl_version = static_cast<uint32_t>(gpu_->nccl_version());
  }
  if (size_ == 1) {
    put(info.device, sizeof info.device, "none: one rank needs no device");
    return info;
  }
  const VerbsStats stats = engine_->domain()->stats();
  info.reads = reads_of(engine_->ring()->fetch());
  info.sent_bytes = stats.sent_bytes;
  info.received_bytes = stats.received_bytes;
  put(info.device, sizeof info.device, engine_->domain()->describe());
  put(info.notice, sizeof info.notice, provider_->notice());
  return info;
}

ReducerHost Comm::reducer_host() {
  return {.rank = rank_,
          .size = size_,
          .engine = engine_.get(),
          .control = control_.get(),
          .open_steps = &open_steps_,
          .timeline = timeline_.get(),
          .device = gpu_ != nullptr ? gpu_->host() : DeviceHost{},
          .start_timeout = start_timeout_,
          .collective_timeout = collective_timeout_};
}

}  // namespace noria::bucketing
