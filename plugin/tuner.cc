#include "plugin/tuner.hpp"

#include <atomic>
#include <memory>

#include "base/log.hpp"
#include "plugin/registry.hpp"
#include "plugin/setup.hpp"
#include "plugin/tuner/decision.hpp"
#include "plugin/tuner/nccl_constants.hpp"

namespace noria::plugin {
namespace {

using tuner::Row;

// The context, or null where there is nothing to choose by: NCCL hands back what init() gave.
const TunerContext* tuner_of(void* context) {
  return context != nullptr ? static_cast<Context*>(context)->tuner.get() : nullptr;
}

bool is_collective(int collective) {
  return collective >= 0 && collective < static_cast<int>(tuner::kCollectives.size());
}

NORIA_COLD void on_ll128_alone(const TunerContext& tuner) {
  // relaxed: a line more would harm nobody.
  if (tuner.has_said.exchange(true, std::memory_order_relaxed)) return;
  log(LogLevel::warn,
      "noria: the user leaves NCCL no protocol but LL128, and the software HCA may place a line of "
      "128 bytes in parts: results may be wrong; let NCCL_PROTO have another");
}

// The first row for the operation that `is_meant`, or null.
template <class IsMeant>
const Row* first_row(const TunerContext& tuner, int collective, size_t bytes,
                     const IsMeant& is_meant) {
  for (const uint32_t place : tuner.index.find(static_cast<tuner::Collective>(collective), bytes))
    if (const Row& row = tuner.setup->tuning.table.rows[place]; is_meant(row)) return &row;
  return nullptr;
}

// Version 2 does not say what NCCL could do; these it always can. Nor what it would do, which a row
// that is modelled has to be better than.
bool is_safe_without_costs(const Row& row, bool has_nvls) {
  if (row.is_modelled || row.protocol == tuner::Protocol::ll128) return false;
  return row.algorithm == tuner::Algorithm::ring || row.algorithm == tuner::Algorithm::tree ||
         (row.algorithm == tuner::Algorithm::nvls_tree && has_nvls);
}

}  // namespace

void init_tuner(void** context, uint64_t communicator, size_t ranks, size_t nodes,
                abi::Logger logger, abi::TunerConstants* constants) {
  send_log_to(logger);
  if (context == nullptr) return;
  Context* const made = registry().open(communicator, -1);
  *context = made;
  auto setup = registry().setup();
  if (setup == nullptr || setup->provider == nullptr) return;  // why was said when it was found out
  auto tuner = std::make_unique<TunerContext>();
  const tuner::Facts facts{.ranks = ranks, .nodes = nodes};
  tuner->index = tuner::Index::make(setup->tuning.table, facts);
  tuner->tears_lines = setup->provider->kind() == verbs::ProviderKind::software;
  tuner->user_chooses = !setup->params.nccl_algo.empty() || !setup->params.nccl_proto.empty();
  if (constants != nullptr) apply(setup->tuning.table.constants, constants);
  tuner->setup = std::move(setup);
  made->tuner = std::move(tuner);
}

void finalize_tuner(void* context) {
  if (context != nullptr) static_cast<void>(registry().close(static_cast<Context*>(context)));
}

void get_choice(void* context, int collective, size_t bytes, float* costs, int algorithms,
                int protocols, int* channels) {
  const TunerContext* const tuner = tuner_of(context);
  if (tuner == nullptr || costs == nullptr || algorithms <= 0 || protocols <= 0) return;
  const tuner::Costs all{costs, static_cast<uint32_t>(algorithms),
                         static_cast<uint32_t>(protocols)};
  if (tuner->tears_lines && tuner::ignore_ll128(all)) on_ll128_alone(*tuner);
  if (!is_collective(collective)) return;
  const tuner::Decision decision =
      tuner::choose(tuner->setup->tuning.table, tuner->index,
                    static_cast<tuner::Collective>(collective), bytes, all);
  if (!decision.is_ours()) return;
  if (channels != nullptr && decision.row->channels != 0) *channels = decision.row->channels;
}

void get_choice_without_costs(void* context, int collective, size_t bytes, bool has_nvls,
                              int* algorithm, int* protocol, int* channels) {
  const TunerContext* const tuner = tuner_of(context);
  if (tuner == nullptr || tuner->user_chooses || !is_collective(collective)) return;
  if (algorithm == nullptr || protocol == nullptr) return;
  const Row* const row = first_row(*tuner, collective, bytes, [&](const Row& candidate) {
    return is_safe_without_costs(candidate, has_nvls);
  });
  if (row == nullptr) return;
  *algorithm = static_cast<int>(row->algorithm);
  *protocol = static_cast<int>(row->protocol);
  if (channels != nullptr && row->channels != 0) *channels = row->channels;
}

void get_chunk(void* context, int collective, size_t bytes, int algorithm, int protocol,
               size_t* chunk_bytes) {
  const TunerContext* const tuner = tuner_of(context);
  if (tuner == nullptr || chunk_bytes == nullptr || !is_collective(collective)) return;
  const Row* const row = first_row(*tuner, collective, bytes, [&](const Row& candidate) {
    return static_cast<int>(candidate.algorithm) == algorithm &&
           static_cast<int>(candidate.protocol) == protocol;
  });
  if (row != nullptr && row->chunk_bytes != 0) *chunk_bytes = row->chunk_bytes;
}

}  // namespace noria::plugin
