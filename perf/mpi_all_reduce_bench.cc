// mpi_all_reduce_bench BYTES ITERATIONS WARMUPS: MPI_Allreduce of floats, sum, out of place, as
// all_reduce_perf times noria's. Rank 0 prints the time of a call in microseconds, mean over ranks.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// Exact sums, different on every rank, so that a wrong result can be told.
float element(int rank, size_t index) {
  return static_cast<float>((index * 7 + static_cast<size_t>(rank) * 13) % 1024);
}

bool is_right(const std::vector<float>& result, int ranks) {
  for (size_t i = 0; i < result.size(); ++i) {
    float expected = 0;
    for (int rank = 0; rank < ranks; ++rank) expected += element(rank, i);
    if (result[i] != expected) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) {
    std::fprintf(stderr, "usage: mpi_all_reduce_bench BYTES ITERATIONS WARMUPS\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const size_t count = std::strtoull(argv[1], nullptr, 10) / sizeof(float);
  const int iterations = std::atoi(argv[2]);
  const int warmups = std::atoi(argv[3]);
  int rank = 0;
  int ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  std::vector<float> in(count), out(count);
  for (size_t i = 0; i < count; ++i) in[i] = element(rank, i);
  const auto reduce = [&] {
    MPI_Allreduce(in.data(), out.data(), static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  for (int i = 0; i < warmups; ++i) reduce();
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (int i = 0; i < iterations; ++i) reduce();
  const double mine = (MPI_Wtime() - begin) * 1e6 / iterations;

  double sum = 0;
  MPI_Reduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) std::printf("%.3f\n", sum / ranks);
  const bool right = is_right(out, ranks);
  MPI_Finalize();
  return right ? 0 : 1;
}
