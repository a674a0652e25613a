#include "emulator.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

Index threadIdx, blockIdx, blockDim, gridDim;
unsigned char* shared_memory;

namespace {

constexpr u32 lanes_per_warp = 32, most_threads = 1024, most_arguments = 32;
constexpr u32 most_shared_bytes = 227 << 10;
constexpr size_t stack_bytes = 256 << 10, guard_bytes = 64 << 10;  // whole pages

struct Copy {
  void* to;
  const void* from;
  u32 bytes;
  void perform() const { memcpy(to, from, bytes); }
};

// The copies that one thread has begun; a wait performs those that it has also committed.
struct Copies {
  std::vector<Copy> begun;
  size_t committed = 0;
  void wait() {
    for (size_t i = 0; i < committed; i++) begun[i].perform();
    begun.erase(begun.begin(), begun.begin() + committed);
    committed = 0;
  }
};

struct Thread {
  bool started = false, ended = false;
  const char* waits_in = nullptr;
  jmp_buf state;  // of a thread that waits
  Copies loads, stores;
};

struct Warp {
  const char* operation;  // that the lanes which have arrived want to do
  u32 arrived = 0;
  void* operands[lanes_per_warp];  // on the stacks of the lanes
  template <class Operands> Operands& lane(u32 i) const { return *(Operands*)operands[i]; }
};

struct Barrier {
  u32 offset;
  u32 completed = 0;  // phases
  bool expecting = false;
  u32 expected = 0, loaded = 0;  // bytes, in this phase
  std::vector<Copy> loads;
  std::vector<Thread*> waiting;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<Barrier> barriers;
  std::vector<Thread*> at_syncthreads;
  std::deque<Thread*> ready;
  u32 running;
};

// ---- the launch in progress

Block block;
Thread* current;  // the thread that runs
u32 shared_bytes;
const long* arguments;
void* kernel;
char message[512];

// ---- fibers

enum Outcome { begin, waits_or_ended, failed };
jmp_buf scheduler;
unsigned char* stacks;

u32 number_of(const Thread* thread) { return (u32)(thread - block.threads.data()); }

[[noreturn]] void fail(const char* format, ...) {
  int n = snprintf(message, sizeof message, "thread %u of block (%u, %u): ", threadIdx.x, blockIdx.x, blockIdx.y);
  va_list values;
  va_start(values, format);
  vsnprintf(message + n, sizeof message - n, format, values);
  va_end(values);
  _longjmp(scheduler, failed);
}

// Lets others run until someone puts this thread among those that are ready.
void wait_in(const char* operation) {
  current->waits_in = operation;
  if (_setjmp(current->state) == 0) _longjmp(scheduler, waits_or_ended);
}

void release(std::vector<Thread*>& threads) {
  block.ready.insert(block.ready.end(), threads.begin(), threads.end());
  threads.clear();
}

// A thread that has ended counts as one that has arrived.
void release_if_all_at_syncthreads() {
  if (block.at_syncthreads.size() == block.running) release(block.at_syncthreads);
}

template <size_t... I> void call_kernel(std::index_sequence<I...>) {  // too many arguments do no harm
  ((void (*)(decltype((void)I, 0l)...))kernel)(arguments[I]...);
}

void body_of_thread() {
  call_kernel(std::make_index_sequence<most_arguments>());
  current->ended = true;
  block.running--;
  release_if_all_at_syncthreads();
  _longjmp(scheduler, waits_or_ended);
}

[[noreturn]] void start(Thread& thread) {
  thread.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stacks + number_of(&thread) * (stack_bytes + guard_bytes) + guard_bytes;
  context.uc_stack.ss_size = stack_bytes;
  context.uc_link = nullptr;
  makecontext(&context, body_of_thread, 0);
  setcontext(&context);
  __builtin_unreachable();
}

// Runs a thread until it waits, ends (true) or fails (false).
bool run(Thread& thread) {
  current = &thread;
  threadIdx = {number_of(&thread), 0, 0};
  switch (_setjmp(scheduler)) {
    case begin:
      if (thread.started) _longjmp(thread.state, 1);
      start(thread);
    case waits_or_ended: return true;
    default: return false;
  }
}

// ---- memory

void* map(size_t bytes, int protection) {
  return mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

// What cannot be accessed lies around the pages of shared memory, further above its end than an offset can reach, and
// below every stack.
bool map_memory() {
  const size_t most = 256 << 10, reach = (size_t)1 << 32;
  static unsigned char* shared = (unsigned char*)map(most + reach, PROT_NONE);
  if (!stacks) {
    stacks = (unsigned char*)map(most_threads * (stack_bytes + guard_bytes), PROT_READ | PROT_WRITE);
    for (u32 i = 0; i < most_threads; i++) mprotect(stacks + i * (stack_bytes + guard_bytes), guard_bytes, PROT_NONE);
  }
  if (shared == MAP_FAILED || stacks == MAP_FAILED) return false;
  unsigned char* end = shared + most;
  shared_memory = end - (shared_bytes + 15) / 16 * 16;
  unsigned char* first_page = shared_memory - (uintptr_t)shared_memory % sysconf(_SC_PAGESIZE);
  return !mprotect(shared, most, PROT_NONE) && !mprotect(first_page, end - first_page, PROT_READ | PROT_WRITE);
}

void check_shared(const char* operation, u32 offset, u32 bytes, u32 alignment) {
  if (offset % alignment) fail("%s at %u of shared memory, not a multiple of %u", operation, offset, alignment);
  if ((u64)offset + bytes > shared_bytes)
    fail("%s of bytes %u to %llu of %u bytes of shared memory", operation, offset, (u64)offset + bytes, shared_bytes);
}

void check_copy(const char* operation, u32 offset, const void* global, u32 bytes) {
  check_shared(operation, offset, bytes, 16);
  if ((uintptr_t)global % 16) fail("%s at %p of global memory, not a multiple of 16", operation, global);
  if (bytes % 16) fail("%s of %u bytes, not a multiple of 16", operation, bytes);
}

// While kernels run, a fault of the processor is an error of the kernel.
struct FaultsCaught {
  static constexpr int number_of_signals = 5, signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
  struct sigaction before[number_of_signals];
  stack_t stack_before;

  FaultsCaught() {
    static unsigned char stack[64 << 10];  // the fiber's own may be the fault
    stack_t handler_stack = {};
    handler_stack.ss_sp = stack;
    handler_stack.ss_size = sizeof stack;
    sigaltstack(&handler_stack, &stack_before);
    struct sigaction action = {};
    action.sa_sigaction = report;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < number_of_signals; i++) sigaction(signals[i], &action, &before[i]);
  }
  ~FaultsCaught() {
    for (int i = 0; i < number_of_signals; i++) sigaction(signals[i], &before[i], nullptr);
    sigaltstack(&stack_before, nullptr);
  }
  static void report(int signal, siginfo_t* info, void*) {
    if (signal == SIGFPE) fail("division by zero");
    if (signal == SIGILL || signal == SIGTRAP) fail("misaligned access");  // a check that the compiler put in
    long offset = (long)((uintptr_t)info->si_addr - (uintptr_t)shared_memory);
    if (offset > -(1l << 17) && offset < 1l << 32)
      fail("access at %ld of %u bytes of shared memory", offset, shared_bytes);
    fail("access outside of memory, at %p", info->si_addr);
  }
};

// ---- operations of a warp

// The last lane to arrive does the operation for all lanes.
template <class Operands> void together(const char* operation, Operands* operands, void (*whole)(const Warp&)) {
  Warp& warp = block.warps[threadIdx.x / lanes_per_warp];
  if (warp.arrived && strcmp(warp.operation, operation)) fail("%s while its warp is in %s", operation, warp.operation);
  warp.operation = operation;
  warp.operands[threadIdx.x % lanes_per_warp] = operands;
  if (++warp.arrived < lanes_per_warp) return wait_in(operation);
  whole(warp);
  warp.arrived = 0;
  Thread* first = current - threadIdx.x % lanes_per_warp;
  for (u32 i = 0; i < lanes_per_warp; i++)
    if (first + i != current) block.ready.push_back(first + i);
}

struct Shuffle {
  float in, out;
  int lanes;
};

void shuffle_whole(const Warp& warp) {
  for (u32 i = 0; i < lanes_per_warp; i++) {
    Shuffle& lane = warp.lane<Shuffle>(i);
    lane.out = warp.lane<Shuffle>((i ^ lane.lanes) % lanes_per_warp).in;
  }
}

void sum_whole(const Warp& warp) {
  u32 sum = 0;  // wraps
  for (u32 i = 0; i < lanes_per_warp; i++) sum += warp.lane<int>(i);
  for (u32 i = 0; i < lanes_per_warp; i++) warp.lane<int>(i) = (int)sum;
}

void uniform_whole(const Warp& warp) {
  for (u32 i = 1; i < lanes_per_warp; i++) warp.lane<int>(i) = warp.lane<int>(0);
}

struct Matrices {
  u32 (&r)[4];
  u32 offset;
};

// Lanes 8m .. 8m+7 give the rows of matrix m. Lane i gets two neighbours of row (transposed: column) i / 4 of each.
template <bool transposed> void load_matrices_whole(const Warp& warp) {
  for (u32 m = 0; m < 4; m++) {
    uint16_t matrix[8][8];
    for (u32 row = 0; row < 8; row++) memcpy(matrix[row], shared_memory + warp.lane<Matrices>(m * 8 + row).offset, 16);
    for (u32 i = 0; i < lanes_per_warp; i++) {
      u32 a = i / 4, b = i % 4 * 2;
      warp.lane<Matrices>(i).r[m] = transposed ? matrix[b][a] | (u32)matrix[b + 1][a] << 16
                                               : matrix[a][b] | (u32)matrix[a][b + 1] << 16;
    }
  }
}

void unpack(u32 pair, float* to) {
  to[0] = as_float(pair << 16);
  to[1] = as_float(pair & 0xffff0000u);
}

// sum = a b, for the tensor cores' operations
template <int M, int N> void multiply(float (&sum)[M][N], const float (&a)[M][16], const float (&b)[16][N]) {
  for (int i = 0; i < M; i++) {
    for (int j = 0; j < N; j++) sum[i][j] = 0;
    for (int k = 0; k < 16; k++)
      for (int j = 0; j < N; j++) sum[i][j] += a[i][k] * b[k][j];
  }
}

struct Mma {
  float (&c)[4];
  const u32 (&a)[4];
  u32 b[2];
};

void mma_whole(const Warp& warp) {
  float a[16][16], b[16][8], sum[16][8];
  for (u32 i = 0; i < lanes_per_warp; i++) {
    const Mma& lane = warp.lane<Mma>(i);
    u32 row = i / 4, column = i % 4 * 2;
    for (u32 part = 0; part < 4; part++) unpack(lane.a[part], &a[row + part % 2 * 8][column + part / 2 * 8]);
    for (u32 part = 0; part < 2; part++) {
      float pair[2];
      unpack(lane.b[part], pair);
      for (u32 e = 0; e < 2; e++) b[column + part * 8 + e][row] = pair[e];
    }
  }
  multiply(sum, a, b);
  for (u32 i = 0; i < lanes_per_warp; i++)
    for (u32 e = 0; e < 4; e++) warp.lane<Mma>(i).c[e] += sum[i / 4 + e / 2 * 8][i % 4 * 2 + e % 2];
}

// The 16 numbers along K of one row of A, or column of B: eight in each of two 8x8 matrices.
void load_described(float (&to)[16], u32 descriptor, u32 row) {
  u32 stride = (descriptor >> 16 & 0x3fff) * 16;
  for (u32 half = 0; half < 2; half++) {
    u32 offset = (descriptor & 0x3fff) * 16 + row * 16 + half * stride, pairs[4];
    check_shared("wgmma", offset, 16, 16);
    memcpy(pairs, shared_memory + offset, 16);
    for (u32 i = 0; i < 4; i++) unpack(pairs[i], to + half * 8 + i * 2);
  }
}

struct Wgmma {
  float (&d)[16];
  u32 a, b;
  int accumulate;
};

// The share of one warp: 16 of the 64 rows.
void wgmma_whole(const Warp& warp) {
  const Wgmma& first = warp.lane<Wgmma>(0);
  for (u32 i = 1; i < lanes_per_warp; i++) {
    const Wgmma& lane = warp.lane<Wgmma>(i);
    if (lane.a != first.a || lane.b != first.b || !lane.accumulate != !first.accumulate)
      fail("wgmma whose operands differ between lanes 0 and %u", i);
  }
  float a[16][16], b[16][32], sum[16][32];
  u32 first_row = threadIdx.x / lanes_per_warp % 4 * 16;
  for (u32 row = 0; row < 16; row++) load_described(a[row], first.a, first_row + row);
  for (u32 column = 0; column < 32; column++) {
    float numbers[16];
    load_described(numbers, first.b, column);
    for (u32 k = 0; k < 16; k++) b[k][column] = numbers[k];
  }
  multiply(sum, a, b);
  for (u32 i = 0; i < lanes_per_warp; i++)
    for (u32 e = 0; e < 16; e++) {
      float& d = warp.lane<Wgmma>(i).d[e];
      d = (first.accumulate ? d : 0) + sum[i / 4 + e / 2 % 2 * 8][e / 4 * 8 + i % 4 * 2 + e % 2];
    }
}

// ---- barriers

const u64 barrier_mark = 0x7261656279746573;  // lies in shared memory where a barrier is

Barrier& barrier_at(const char* operation, u32 offset) {
  check_shared(operation, offset, 8, 8);
  for (Barrier& barrier : block.barriers) {
    if (barrier.offset != offset) continue;
    if (memcmp(shared_memory + offset, &barrier_mark, 8)) fail("%s: barrier at %u is overwritten", operation, offset);
    return barrier;
  }
  fail("%s: no barrier_init at %u", operation, offset);
}

// Only a thread that waits ends a phase, so that the bytes are not there any earlier.
void complete_if_loaded(Barrier& barrier) {
  if (!barrier.expecting || barrier.loaded < barrier.expected) return;
  if (barrier.loaded > barrier.expected)
    fail("barrier at %u expects %u bytes and gets %u", barrier.offset, barrier.expected, barrier.loaded);
  for (const Copy& copy : barrier.loads) copy.perform();
  barrier.loads.clear();
  barrier.loaded = 0;
  barrier.expecting = false;
  barrier.completed++;
  release(barrier.waiting);
}

// ---- blocks

void prepare_block(u32 threads) {
  block.barriers.clear();
  block.at_syncthreads.clear();
  block.ready.clear();
  block.warps.assign(threads / lanes_per_warp, Warp());
  block.threads.resize(threads);
  for (Thread& thread : block.threads) {
    thread.started = thread.ended = false;
    thread.loads = thread.stores = Copies();
    block.ready.push_back(&thread);
  }
  block.running = threads;
  memset(shared_memory, 0xff, shared_bytes);
}

bool report_deadlock() {
  std::map<std::string, u32> waiting;
  for (const Thread& thread : block.threads)
    if (!thread.ended) waiting[thread.waits_in]++;
  std::string all;
  for (const auto& [operation, threads] : waiting)
    all += (all.empty() ? "" : ", ") + std::to_string(threads) + " in " + operation;
  for (const Barrier& barrier : block.barriers)
    if (!barrier.waiting.empty())
      all += "; barrier at " + std::to_string(barrier.offset) + " has " + std::to_string(barrier.loaded) + " of " +
             std::to_string(barrier.expecting ? barrier.expected : 0) + " bytes";
  snprintf(message, sizeof message, "block (%u, %u): threads wait for ever: %s", blockIdx.x, blockIdx.y, all.c_str());
  return false;
}

// What is still under way when all threads have ended.
bool finish_block() {
  for (const Barrier& barrier : block.barriers)
    if (barrier.expecting || barrier.loaded) {
      snprintf(message, sizeof message, "block (%u, %u): nobody waits for the bytes of the barrier at %u", blockIdx.x,
               blockIdx.y, barrier.offset);
      return false;
    }
  if (_setjmp(scheduler)) return false;
  for (Thread& thread : block.threads) {
    threadIdx.x = number_of(&thread);
    for (const Copy& store : thread.stores.begun) store.perform();
  }
  return true;
}

bool run_block(u32 threads, bool backwards) {
  prepare_block(threads);
  while (!block.ready.empty()) {
    Thread* next = backwards ? block.ready.back() : block.ready.front();
    backwards ? block.ready.pop_back() : block.ready.pop_front();
    if (!run(*next)) return false;
  }
  return block.running ? report_deadlock() : finish_block();
}

}  // namespace

// ---- what kernels call

void __syncthreads() {
  block.at_syncthreads.push_back(current);
  if (block.at_syncthreads.size() < block.running) return wait_in("__syncthreads");
  block.at_syncthreads.pop_back();
  release(block.at_syncthreads);
}
void __syncwarp() { together<void>("__syncwarp", nullptr, [](const Warp&) {}); }

float shuffle_xor(float x, int lanes) {
  Shuffle shuffle{x, 0, lanes};
  together("shuffle_xor", &shuffle, shuffle_whole);
  return shuffle.out;
}
int warp_sum(int x) {
  together("warp_sum", &x, sum_whole);
  return x;
}
int uniform(int x) {
  together("uniform", &x, uniform_whole);
  return x;
}
void load_matrices(u32 (&r)[4], u32 offset) {
  check_shared("load_matrices", offset, 16, 16);
  Matrices matrices{r, offset};
  together("load_matrices", &matrices, load_matrices_whole<false>);
}
void load_matrices_transposed(u32 (&r)[4], u32 offset) {
  check_shared("load_matrices_transposed", offset, 16, 16);
  Matrices matrices{r, offset};
  together("load_matrices_transposed", &matrices, load_matrices_whole<true>);
}
void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  Mma operands{c, a, {b0, b1}};
  together("mma", &operands, mma_whole);
}

void add_pair(float* to, float a, float b) {
  if ((uintptr_t)to % 8) fail("add_pair at %p, not a multiple of 8", (void*)to);
  to[0] += a;
  to[1] += b;
}
void copy_async(u32 offset, const void* global) {
  check_copy("copy_async", offset, global, 16);
  current->loads.begun.push_back({shared_memory + offset, global, 16});
}
void copy_async_commit() { current->loads.committed = current->loads.begun.size(); }
void copy_async_wait() { current->loads.wait(); }

void bulk_store(void* global, u32 offset, u32 bytes) {
  check_copy("bulk_store", offset, global, bytes);
  current->stores.begun.push_back({global, shared_memory + offset, bytes});
}
void bulk_store_commit() { current->stores.committed = current->stores.begun.size(); }
void bulk_store_wait_read() { current->stores.wait(); }

void barrier_init(u32 offset) {
  check_shared("barrier_init", offset, 8, 8);
  for (const Barrier& barrier : block.barriers)
    if (barrier.offset == offset) fail("barrier_init at %u, which is a barrier already", offset);
  memcpy(shared_memory + offset, &barrier_mark, 8);
  block.barriers.emplace_back();
  block.barriers.back().offset = offset;
}
void barrier_expect(u32 offset, u32 bytes) {
  Barrier& barrier = barrier_at("barrier_expect", offset);
  if (barrier.expecting) fail("barrier_expect at %u before anyone has waited for the bytes of the one before", offset);
  barrier.expecting = true;
  barrier.expected = bytes;
  if (!barrier.waiting.empty()) complete_if_loaded(barrier);
}
void bulk_load(u32 offset, const void* global, u32 bytes, u32 barrier_offset) {
  Barrier& barrier = barrier_at("bulk_load", barrier_offset);
  check_copy("bulk_load", offset, global, bytes);
  barrier.loads.push_back({shared_memory + offset, global, bytes});
  barrier.loaded += bytes;
  if (!barrier.waiting.empty()) complete_if_loaded(barrier);
}
void barrier_wait(u32 offset, u32 parity) {
  Barrier& barrier = barrier_at("barrier_wait", offset);
  if (parity > 1) fail("barrier_wait for parity %u", parity);
  if (barrier.completed % 2 != parity) return;
  complete_if_loaded(barrier);
  if (barrier.completed % 2 != parity) return;
  barrier.waiting.push_back(current);
  wait_in("barrier_wait");
}

u32 matrix_descriptor(u32 offset, u32 stride) {
  check_shared("matrix_descriptor", offset, 0, 16);
  return (offset >> 4 & 0x3fff) | stride << 16;
}
void wgmma_64x32x16(float (&d)[16], u32 a, u32 b, int accumulate) {
  if (threadIdx.x / 128 * 128 + 128 > blockDim.x) fail("wgmma by less than four warps");
  Wgmma operands{d, a, b, accumulate};
  together("wgmma_64x32x16", &operands, wgmma_whole);
}

// ---- what Python calls

// Null, or what went wrong. There are `most_arguments` parameters, the rest of them unused.
extern "C" __attribute__((visibility("default"))) const char* emulator_launch(void* function, const long* parameters,
                                                                              u32 grid_x, u32 grid_y, u32 threads,
                                                                              u32 bytes, int backwards) {
  if (!grid_x || !grid_y || grid_x >> 31 || grid_y >> 16) return "a grid has 1 to 2^31 - 1 by 1 to 65535 blocks";
  if (!threads || threads % lanes_per_warp || threads > most_threads)
    return "a block has whole warps, 1024 threads at most";
  if (bytes > most_shared_bytes) return "a block has 232448 bytes of shared memory at most";
  shared_bytes = bytes;
  if (!map_memory()) return "no memory for the emulator";
  kernel = function;
  arguments = parameters;
  gridDim = {grid_x, grid_y, 1};
  blockDim = {threads, 1, 1};
  FaultsCaught caught;
  for (u32 y = 0; y < grid_y; y++)
    for (u32 x = 0; x < grid_x; x++) {
      blockIdx = {x, y, 0};
      if (!run_block(threads, backwards)) return message;
    }
  return nullptr;
}
