#include "plugin/tuner/index.hpp"

#include <algorithm>
#include <set>

namespace noria::plugin::tuner {

bool is_for(const Row& row, const Facts& facts) {
  const uint64_t ranks_per_node = facts.ranks_per_node();
  const bool is_even = ranks_per_node != 0 && row.ranks_per_node.has(ranks_per_node);
  return row.nodes.has(facts.nodes) && (is_even || row.ranks_per_node == Range());
}

Index Index::make(const Table& table, const Facts& facts) {
  std::array<std::vector<uint32_t>, kCollectives.size()> fitting;
  for (uint32_t i = 0; i < table.rows.size(); ++i)
    if (is_for(table.rows[i], facts))
      fitting[static_cast<size_t>(table.rows[i].collective)].push_back(i);
  Index index;
  for (size_t i = 0; i < fitting.size(); ++i)
    if (!fitting[i].empty()) index.pieces_[i] = cut(table, fitting[i]);
  return index;
}

Index::Pieces Index::cut(const Table& table, const std::vector<uint32_t>& fitting) {
  struct Edge {
    uint64_t at;
    uint32_t row;
    bool is_begin;
  };
  std::vector<Edge> edges;
  for (const uint32_t row : fitting) {
    const Range& bytes = table.rows[row].bytes;
    edges.push_back({bytes.first, row, true});
    if (bytes.last != UINT64_MAX) edges.push_back({bytes.last + 1, row, false});
  }
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });

  Pieces pieces;
  std::array<std::set<uint32_t>, kCells> open;  // rows that fit here, by what they choose
  const auto begin_piece = [&](uint64_t at) {
    pieces.begins.push_back(at);
    pieces.row_begins.push_back(static_cast<uint32_t>(pieces.rows.size()));
    const size_t first = pieces.rows.size();
    for (const std::set<uint32_t>& rows : open)
      if (!rows.empty()) pieces.rows.push_back(*rows.begin());
    std::sort(pieces.rows.begin() + static_cast<ptrdiff_t>(first), pieces.rows.end());
  };
  if (edges.front().at != 0) begin_piece(0);
  for (size_t i = 0; i < edges.size();) {
    const uint64_t at = edges[i].at;
    for (; i < edges.size() && edges[i].at == at; ++i) {
      std::set<uint32_t>& rows = open[table.rows[edges[i].row].cell()];
      if (edges[i].is_begin)
        rows.insert(edges[i].row);
      else
        rows.erase(edges[i].row);
    }
    begin_piece(at);
  }
  pieces.row_begins.push_back(static_cast<uint32_t>(pieces.rows.size()));
  for (size_t power = 0; power < pieces.by_power.size(); ++power) {
    const auto is_below = [power](uint64_t begin) { return power >= 64 || begin >> power == 0; };
    pieces.by_power[power] = static_cast<uint32_t>(
        std::partition_point(pieces.begins.begin(), pieces.begins.end(), is_below) -
        pieces.begins.begin());
  }
  return pieces;
}

}  // namespace noria::plugin::tuner
