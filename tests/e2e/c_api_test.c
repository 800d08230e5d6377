/* The C API from C11: two ranks forked by their parent, an all-reduce and a broadcast. */
#include <noria/bucketing.h>
#include <noria/observe.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 1000

static int check(noria_status status, const char* what) {
  char text[1024];
  if (status == NORIA_OK) return 0;
  noria_last_error(text, sizeof text);
  fprintf(stderr, "%s: %s: %s\n", what, noria_status_name(status), text);
  return 1;
}

static int run_rank(const noria_unique_id* id, int32_t rank) {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  noria_comm* comm = NULL;
  noria_work* work = NULL;
  double values[COUNT];
  int wrong = 0;

  config.id = id;
  config.rank = rank;
  config.size = 2;
  config.start_timeout_ms = 30000;
  config.collective_timeout_ms = 30000;
  if (check(noria_comm_create(&config, &comm), "create")) return 1;

  for (int i = 0; i < COUNT; ++i) values[i] = i + 1000.0 * rank;
  wrong |=
      check(noria_all_reduce(comm, values, values, COUNT, NORIA_FLOAT64, NORIA_AVG, NULL, NULL),
            "all_reduce");
  for (int i = 0; i < COUNT; ++i) wrong |= values[i] != i + 500.0;

  wrong |= check(noria_broadcast(comm, values, values, COUNT, NORIA_FLOAT64, 1, NULL, &work),
                 "broadcast");
  wrong |= check(noria_work_wait(work, 0), "wait");
  noria_work_release(work);
  noria_comm_destroy(comm);
  return wrong;
}

int main(void) {
  noria_unique_id id;
  pid_t children[2];
  int failed = 0;
  if (noria_version() !=
      10000u * NORIA_VERSION_MAJOR + 100u * NORIA_VERSION_MINOR + NORIA_VERSION_PATCH)
    return 1;
  if (strcmp(noria_status_name(NORIA_E_PEER), "NORIA_E_PEER") != 0) return 1;
  if (check(noria_get_unique_id(&id), "unique id")) return 1;
  for (int32_t rank = 0; rank < 2; ++rank) {
    children[rank] = fork();
    if (children[rank] == 0) _exit(run_rank(&id, rank));
  }
  for (int rank = 0; rank < 2; ++rank) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      fprintf(stderr, "rank %d ended with %d\n", rank, status);
      failed = 1;
    }
  }
  return failed;
}
