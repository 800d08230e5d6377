/* An MLP by hand, trained data-parallel: noria averages the gradients of 2 to 4 processes while the
 * backward pass is still running.
 *
 *   cc -std=c11 -o mlp mlp.c $(pkg-config --cflags --libs noria) -lm
 *   ./mlp 2                                           two ranks here; no RDMA device is needed
 *   torchrun --nproc-per-node 2 --no-python ./mlp     or rank and size from a launcher
 *
 * Each rank takes its share of every batch. The mean of the ranks' gradients is the gradient of the
 * joined batch, so training must go as in one process that sees all of it: each rank does that as
 * well, and compares.
 *
 * Exit: 0 the losses are those of one process within rounding, and the parameters are the same, bit
 * by bit, on all ranks; 1 they are not, or something failed; 2 usage. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <noria/bucketing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LAYERS = 3, WIDEST = 32, BATCH = 48, STEPS = 60 };
static const int widths[LAYERS + 1] = {8, WIDEST, WIDEST, 1};
static const float learning_rate = 0.1f;
static const double rounding = 1e-5; /* of a loss, relative; sums in another order differ so much */

/* ---- a model, and its gradients, which have the same shape --------------------------------- */

struct layer {
  float weight[WIDEST][WIDEST]; /* [output][input] */
  float bias[WIDEST];
};
struct model {
  struct layer layers[LAYERS];
};

/* Whoever wants to know that a layer's gradients are complete, as a framework's hooks do. */
struct hook {
  void (*on_gradients)(void* user, int layer);
  void* user;
};

static uint32_t random_bits = 1;
static float random_number(void) { /* in [-1, 1) */
  random_bits = random_bits * 1664525u + 1013904223u;
  return (float)(int32_t)random_bits * 0x1p-31f;
}

static void make_model(struct model* model) {
  random_bits = 7;
  for (int l = 0; l < LAYERS; ++l)
    for (int out = 0; out < WIDEST; ++out) {
      model->layers[l].bias[out] = 0;
      for (int in = 0; in < WIDEST; ++in)
        model->layers[l].weight[out][in] = random_number() / sqrtf((float)widths[l]);
    }
}

/* Sample `index` of a step's batch: the same in every process. */
static void make_sample(int step, int index, float input[WIDEST], float* target) {
  random_bits = (uint32_t)(step * BATCH + index) * 2654435761u;
  random_number();
  for (int i = 0; i < widths[0]; ++i) input[i] = random_number();
  *target = input[0] * input[1] + 0.5f * input[2] - input[3];
}

/* Forward and backward over samples [first, first + count): returns the mean of their losses and
 * leaves the mean gradients in `gradients`, the last layer's first, and tells `hook` of each. */
static double run_samples(const struct model* model, int step, int first, int count,
                          struct model* gradients, const struct hook* hook) {
  static float values[BATCH][LAYERS + 1][WIDEST], slopes[BATCH][WIDEST];
  double loss = 0;
  for (int s = 0; s < count; ++s) {
    float target;
    make_sample(step, first + s, values[s][0], &target);
    for (int l = 0; l < LAYERS; ++l)
      for (int out = 0; out < widths[l + 1]; ++out) {
        float sum = model->layers[l].bias[out];
        for (int in = 0; in < widths[l]; ++in)
          sum += model->layers[l].weight[out][in] * values[s][l][in];
        values[s][l + 1][out] = l + 1 < LAYERS ? tanhf(sum) : sum;
      }
    const float error = values[s][LAYERS][0] - target;
    loss += (double)error * error / count;
    slopes[s][0] = 2 * error / (float)count;
  }
  for (int l = LAYERS - 1; l >= 0; --l) {
    struct layer* gradient = &gradients->layers[l];
    memset(gradient, 0, sizeof *gradient);
    for (int s = 0; s < count; ++s) {
      float below[WIDEST] = {0};
      for (int out = 0; out < widths[l + 1]; ++out) {
        gradient->bias[out] += slopes[s][out];
        for (int in = 0; in < widths[l]; ++in) {
          gradient->weight[out][in] += slopes[s][out] * values[s][l][in];
          below[in] += slopes[s][out] * model->layers[l].weight[out][in];
        }
      }
      for (int in = 0; in < widths[l]; ++in) /* the slope of tanh is 1 - tanh^2 */
        slopes[s][in] = below[in] * (1 - values[s][l][in] * values[s][l][in]);
    }
    if (hook != NULL) hook->on_gradients(hook->user, l); /* the layers below are still to come */
  }
  return loss;
}

static void descend(struct model* model, const struct model* gradients) {
  float* value = (float*)model;
  const float* slope = (const float*)gradients;
  for (size_t i = 0; i < sizeof *model / sizeof *value; ++i) value[i] -= learning_rate * slope[i];
}

/* ---- the ranks ------------------------------------------------------------------------------ */

static void require(noria_status status, const char* what) {
  char text[1024];
  if (status == NORIA_OK) return;
  noria_last_error(text, sizeof text);
  fprintf(stderr, "mlp: %s: %s: %s\n", what, noria_status_name(status), text);
  exit(1); /* the other ranks learn of it */
}

struct trainer {
  noria_reducer* reducer;
  struct model* gradients;
  uint32_t weight_ids[LAYERS], bias_ids[LAYERS];
};

static uint32_t add_tensor(noria_reducer* reducer, int layer, const char* what, uint64_t numel) {
  char name[32];
  uint32_t id = 0;
  noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
  snprintf(name, sizeof name, "layer%d.%s", layer, what);
  tensor.name = name;
  tensor.dtype = NORIA_FLOAT32;
  tensor.numel = numel;
  require(noria_reducer_add(reducer, &tensor, &id), "noria_reducer_add");
  return id;
}

/* The gradients are read now and replaced by their averages when the step ends. */
static void give_gradients(void* user, int layer) {
  struct trainer* t = user;
  struct layer* gradient = &t->gradients->layers[layer];
  require(noria_grad_ready(t->reducer, t->bias_ids[layer], gradient->bias, NULL),
          "noria_grad_ready");
  require(noria_grad_ready(t->reducer, t->weight_ids[layer], gradient->weight, NULL),
          "noria_grad_ready");
}

/* The largest and the smallest value of each parameter over the ranks are the same bits. */
static int is_same_on_all(noria_comm* comm, const struct model* model) {
  static struct model largest, smallest;
  const uint64_t count = sizeof *model / sizeof(float);
  require(noria_all_reduce(comm, model, &largest, count, NORIA_FLOAT32, NORIA_MAX, NULL, NULL),
          "noria_all_reduce");
  require(noria_all_reduce(comm, model, &smallest, count, NORIA_FLOAT32, NORIA_MIN, NULL, NULL),
          "noria_all_reduce");
  return memcmp(&largest, &smallest, sizeof largest) == 0;
}

static int train(noria_comm* comm) {
  static struct model model, gradients, alone, alone_gradients;
  struct trainer trainer = {.gradients = &gradients};
  const struct hook hook = {give_gradients, &trainer};
  noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
  int32_t rank = 0, size = 1;
  double first_loss = 0, loss = 0, worst = 0;

  require(noria_comm_rank(comm, &rank), "noria_comm_rank");
  require(noria_comm_size(comm, &size), "noria_comm_size");
  require(noria_reducer_create(comm, &config, &trainer.reducer), "noria_reducer_create");
  for (int l = 0; l < LAYERS; ++l) { /* in the order of the forward pass */
    trainer.weight_ids[l] = add_tensor(trainer.reducer, l, "weight", WIDEST * WIDEST);
    trainer.bias_ids[l] = add_tensor(trainer.reducer, l, "bias", WIDEST);
  }
  require(noria_reducer_seal(trainer.reducer), "noria_reducer_seal");

  make_model(&model);
  make_model(&alone);
  for (int step = 0; step < STEPS; ++step) {
    const int share = BATCH / size;
    require(noria_step_begin(trainer.reducer, 0), "noria_step_begin");
    loss = run_samples(&model, step, rank * share, share, &gradients, &hook);
    require(noria_step_end(trainer.reducer, NULL, NULL), "noria_step_end");
    descend(&model, &gradients);
    require(noria_all_reduce(comm, &loss, &loss, 1, NORIA_FLOAT64, NORIA_AVG, NULL, NULL),
            "noria_all_reduce");

    const double expected = run_samples(&alone, step, 0, BATCH, &alone_gradients, NULL);
    descend(&alone, &alone_gradients);
    worst = fmax(worst, fabs(loss - expected) / expected);
    if (step == 0) first_loss = loss;
  }
  const int is_same = is_same_on_all(comm, &model);
  noria_reducer_destroy(trainer.reducer);

  if (rank == 0)
    printf("mlp: %d ranks, loss %.4f to %.4f in %d steps; off from one process by %.1e at most\n",
           size, first_loss, loss, STEPS, worst);
  if (!(worst <= rounding)) fprintf(stderr, "mlp: rank %d: training went another way\n", rank);
  if (!is_same) fprintf(stderr, "mlp: rank %d: the ranks' parameters differ\n", rank);
  if (!(loss < first_loss)) fprintf(stderr, "mlp: rank %d: nothing was learnt\n", rank);
  return worst <= rounding && is_same && loss < first_loss ? 0 : 1;
}

/* `id` NULL: rank and size come from the launcher's variables. */
static int run_rank(const noria_unique_id* id, int32_t rank, int32_t size) {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  noria_comm* comm = NULL;
  int result;
  config.id = id;
  config.rank = rank;
  config.size = size;
  require(noria_comm_create(&config, &comm), "noria_comm_create");
  require(noria_comm_size(comm, &size), "noria_comm_size");
  if (BATCH % size != 0) {
    fprintf(stderr, "mlp: %d ranks cannot share a batch of %d evenly\n", size, BATCH);
    return 2;
  }
  result = train(comm);
  noria_comm_destroy(comm);
  return result;
}

int main(int argc, char** argv) {
  noria_unique_id id;
  int failed = 0;
  if (argc == 1) return run_rank(NULL, -1, -1);
  const long size = strtol(argv[1], NULL, 10);
  if (argc != 2 || size < 1 || BATCH % size != 0) {
    fprintf(stderr, "usage: mlp [RANKS]; RANKS divides %d; without it a launcher says\n", BATCH);
    return 2;
  }
  require(noria_get_unique_id(&id), "noria_get_unique_id");
  for (int32_t rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) return run_rank(&id, rank, (int32_t)size);
    if (child < 0) failed = 1; /* the others give up when it does not come */
  }
  for (int status; wait(&status) > 0;) failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  return failed;
}
