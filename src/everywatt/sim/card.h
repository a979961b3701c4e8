/* The cards of the simulated NVML: their description, what every call goes through, and the sensor.
 *
 * The sensor publishes on a schedule of its own. A power reading is the mean of P over a window that ends at the last
 * publication, times a gain, plus an offset; the counter is F at its last publication, cut to its quantum.
 */
#ifndef EVERYWATT_CARD_H
#define EVERYWATT_CARD_H

#include "truth.h"

#include <pthread.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <strings.h>


#define API __attribute__((visibility("default"))) int
#define GPUS 32
#define INSTANCES 8
#define PROCESSES 64
#define SLOTS 160
#define NOT_AVAILABLE 0xFFFFFFFFFFFFFFFFull

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    LIBRARY_NOT_FOUND = 12,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25
};

typedef struct {
    int32_t pid, type, instance, check; /* type 1 compute, 2 graphics; check: drop it when the process has gone */
    uint64_t memory;
    double sm, bandwidth; /* shares of the card, 0 to 1 */
} process;

typedef struct gpu gpu;

typedef struct {
    gpu *card; /* the card itself for a card's own handle */
    int instance; /* -1 for the card, else the number of its MIG instance */
    char uuid[96];
    char profile[32];
    int slices;
    uint64_t memory;
} handle;

struct gpu {
    handle self, mig[INSTANCES];
    int index, instances;
    char name[96], uuid[96], serial[32], bus[32];
    sim_device *device;
    sim_schedule power, counter;
    double window, average, gain, offset, quantum_j, power_quantum_w, base_j;
    double call_cost, process_cost, lost_at, back_at, utilisation;
    double limit_w, limit_min_w, limit_max_w;
    double module_w, memory_share; /* the module's power beside the GPU's, the memory's share; below 0: no such scope */
    int counter_module; /* the counter is that of the module */
    long fail_call, fail_after, fail_code;
    int gpm, samples, denied, major, minor, clock_mhz, memory_clock_mhz;
    uint64_t memory;
    char unsupported[1024], missing[1024], failing[512];
    process *processes;
};

typedef struct {
    char name[56];
    uint64_t count;
} slot;

typedef struct {
    slot *slot;
    int of; /* the machine it belongs to: a process may shut one down and open another */
} cached_slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static gpu gpus[GPUS];
static int gpu_count, users, loaded, machine;
static slot *slots;
static char driver[80] = "580.65.06";
static long calls_here;

/* ---- the machine's description ---- */

static int64_t utc_us(double t) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000 + (int64_t)((t - sim_now()) * 1e6);
}

static int start_gpu(const char *id) {
    char name[64], path[SIM_PATH];
    if (gpu_count == GPUS) return -1;
    gpu *g = &gpus[gpu_count];
    memset(g, 0, sizeof *g);
    g->index = gpu_count++;
    g->device = sim_device_named(id);
    g->self.card = g;
    g->self.instance = -1;
    g->gain = 1;
    g->module_w = g->memory_share = -1;
    snprintf(name, sizeof name, "processes-%.40s", id);
    sim_path(path, name);
    g->processes = sim_map(path, 0, NULL);
    return g->device && g->processes ? 0 : -1;
}

static int add_instance(gpu *g, const char *value) {
    if (g->instances == INSTANCES) return -1;
    handle *h = &g->mig[g->instances];
    h->card = g;
    h->instance = g->instances++;
    unsigned long long memory = 0;
    if (sscanf(value, "%95s %31s %d %llu", h->uuid, h->profile, &h->slices, &memory) != 4) return -1;
    h->memory = memory;
    return 0;
}

#define TEXT(field) \
    if (strcmp(key, #field) == 0) { \
        snprintf(g->field, sizeof g->field, "%s", value); \
        return 0; \
    }
#define NUMBER(key_, field, type) \
    if (strcmp(key, key_) == 0) { \
        g->field = (type)strtod(value, NULL); \
        return 0; \
    }

static int describe(const char *key, const char *value) {
    if (strcmp(key, "driver") == 0) {
        snprintf(driver, sizeof driver, "%s", value);
        return 0;
    }
    if (strcmp(key, "gpu") == 0) return start_gpu(value);
    if (gpu_count == 0 || strncmp(key, "gpu_", 4) != 0) return 0;
    gpu *g = &gpus[gpu_count - 1];
    key += 4;
    TEXT(name) TEXT(uuid) TEXT(serial) TEXT(bus) TEXT(unsupported) TEXT(missing) TEXT(failing)
    if (strcmp(key, "mig") == 0) return add_instance(g, value);
    NUMBER("period", power.period, double)
    NUMBER("phase", power.phase, double)
    NUMBER("jitter", power.jitter, double)
    NUMBER("drop", power.drop, double)
    NUMBER("seed", power.seed, uint64_t)
    NUMBER("counter_period", counter.period, double)
    NUMBER("counter_phase", counter.phase, double)
    NUMBER("counter_jitter", counter.jitter, double)
    NUMBER("counter_drop", counter.drop, double)
    NUMBER("counter_seed", counter.seed, uint64_t)
    NUMBER("window", window, double)
    NUMBER("average", average, double)
    NUMBER("gain", gain, double)
    NUMBER("offset", offset, double)
    NUMBER("quantum", quantum_j, double)
    NUMBER("power_quantum", power_quantum_w, double)
    NUMBER("start", base_j, double)
    NUMBER("call_cost", call_cost, double)
    NUMBER("process_cost", process_cost, double)
    NUMBER("lost_at", lost_at, double)
    NUMBER("back_at", back_at, double)
    NUMBER("utilisation", utilisation, double)
    NUMBER("limit", limit_w, double)
    NUMBER("limit_min", limit_min_w, double)
    NUMBER("limit_max", limit_max_w, double)
    NUMBER("module", module_w, double)
    NUMBER("memory_share", memory_share, double)
    NUMBER("counter_module", counter_module, int)
    NUMBER("fail_call", fail_call, long)
    NUMBER("fail_after", fail_after, long)
    NUMBER("fail_code", fail_code, long)
    NUMBER("gpm", gpm, int)
    NUMBER("samples", samples, int)
    NUMBER("denied", denied, int)
    NUMBER("major", major, int)
    NUMBER("minor", minor, int)
    NUMBER("clock", clock_mhz, int)
    NUMBER("memory_clock", memory_clock_mhz, int)
    NUMBER("memory", memory, uint64_t)
    return 0;
}

static int open_machine(void) {
    char path[SIM_PATH];
    int described = 0;
    pthread_mutex_lock(&lock);
    if (!loaded) {
        gpu_count = 0;
        described = sim_load(describe) == 0;
        if (described && gpu_count > 0) {
            sim_path(path, "nvml-calls");
            slots = sim_map(path, 1, NULL);
            loaded = 1;
            machine++;
            calls_here = 0;
        }
    }
    /* A machine without cards has no driver of theirs. */
    int result = loaded ? OK : described ? LIBRARY_NOT_FOUND : DRIVER_NOT_LOADED;
    if (result == OK) users++;
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- what every call goes through: counting, cost, faults ---- */

static slot *slot_of(const char *name) {
    static slot nowhere;
    if (!slots) return &nowhere;
    char path[SIM_PATH];
    sim_path(path, "nvml-calls");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) flock(fd, LOCK_EX);
    slot *found = &nowhere;
    for (int i = 0; i < SLOTS; i++) {
        if (slots[i].name[0] == 0) strncpy(slots[i].name, name, sizeof slots[i].name - 1);
        if (strncmp(slots[i].name, name, sizeof slots[i].name - 1) == 0) {
            found = &slots[i];
            break;
        }
    }
    if (fd >= 0) close(fd);
    return found;
}

/* True where `list` (names joined by +) holds this call, with or without its _v2 or _v3. */
static int listed(const char *list, const char *name) {
    size_t length = strlen(name);
    const char *version = strstr(name, "_v");
    size_t plain = version && version[3] == 0 ? (size_t)(version - name) : length;
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, "+");
        if ((n == length || n == plain) && strncmp(at, name, n) == 0) return 1;
        at += n + (at[n] == '+');
    }
    return 0;
}

static void spend(double seconds) {
    if (seconds <= 0) return;
    double until = sim_now() + seconds;
    while (sim_now() < until) {}
}

static int lost(const gpu *g) {
    if (g->lost_at <= 0) return 0;
    double t = sim_now();
    return t >= g->lost_at && (g->back_at <= g->lost_at || t < g->back_at);
}

static int enter(const char *name, cached_slot *mine, const handle *h, int process_list) {
    if (!users) return UNINITIALIZED;
    slot *s = __atomic_load_n(&mine->slot, __ATOMIC_ACQUIRE);
    if (!s || mine->of != machine) {
        s = slot_of(name);
        mine->of = machine;
        __atomic_store_n(&mine->slot, s, __ATOMIC_RELEASE);
    }
    __atomic_add_fetch(&s->count, 1, __ATOMIC_RELAXED);
    if (!h) return OK;
    const gpu *g = h->card;
    long call = __atomic_add_fetch(&calls_here, 1, __ATOMIC_RELAXED);
    spend(process_list ? g->process_cost : g->call_cost);
    if (g->missing[0] && listed(g->missing, name)) return FUNCTION_NOT_FOUND;
    if (g->unsupported[0] && listed(g->unsupported, name)) return NOT_SUPPORTED;
    if (lost(g)) return GPU_IS_LOST;
    if ((g->fail_call > 0 && call == g->fail_call) || (g->fail_after > 0 && call > g->fail_after) ||
        (g->failing[0] && listed(g->failing, name)))
        return (int)g->fail_code;
    return OK;
}

#define ENTER_(h, list) \
    do { \
        static cached_slot mine_; \
        int result_ = enter(__func__, &mine_, (h), (list)); \
        if (result_ != OK) return result_; \
    } while (0)
#define SYSTEM ENTER_(NULL, 0)
#define CARD(h) \
    if (!(h)) return users ? INVALID_ARGUMENT : UNINITIALIZED; \
    ENTER_(h, 0); \
    gpu *g = (h)->card; \
    (void)g
#define WHOLE_CARD(h) \
    CARD(h); \
    if ((h)->instance >= 0) return NOT_SUPPORTED
#define NEEDS(pointer) \
    if (!(pointer)) return INVALID_ARGUMENT

static int put(const char *text, char *into, unsigned length) {
    if (!into) return INVALID_ARGUMENT;
    if (strlen(text) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return OK;
}

/* ---- the sensor ---- */

static double mean_w(const gpu *g, double end, double window) {
    if (window <= 0) return sim_watts(g->device, end);
    return (sim_joules(g->device, end) - sim_joules(g->device, end - window)) / window;
}

static unsigned reading_mw(const gpu *g, double published, double window) {
    double watts = g->gain * mean_w(g, published, window) + g->offset;
    if (watts < 0) watts = 0;
    if (g->power_quantum_w > 0) watts = floor(watts / g->power_quantum_w + 0.5) * g->power_quantum_w;
    return (unsigned)(watts * 1e3 + 0.5);
}

static unsigned power_now_mw(const gpu *g, double window) {
    return reading_mw(g, sim_published(&g->power, sim_now()), window);
}

static unsigned long long scoped_energy_mj(const gpu *g, int module) {
    double t = sim_published(&g->counter, sim_now());
    double joules = g->base_j + g->gain * sim_joules(g->device, t) + g->offset * t;
    if (module) joules += g->module_w * t;
    if (joules < 0) joules = 0;
    if (g->quantum_j > 0) joules = floor(joules / g->quantum_j + 1e-9) * g->quantum_j;
    return (unsigned long long)(joules * 1e3 + 0.5);
}

static unsigned long long energy_mj(const gpu *g) { return scoped_energy_mj(g, g->counter_module); }

static int alive(const process *p) {
    return p->pid > 0 && (!p->check || kill(p->pid, 0) == 0 || errno == EPERM);
}

/* The share of the card in use, from what processes declared, else from where the power is in its range. */
static double use_share(const gpu *g, double from, double to) {
    if (g->utilisation >= 0) return g->utilisation;
    const sim_device *d = g->device;
    double declared = 0;
    for (int i = 0; i < PROCESSES; i++)
        if (alive(&g->processes[i])) declared += g->processes[i].sm;
    if (declared > 0 || d->kind == SIM_LOAD) return fmin(declared, 1);
    if (d->high_w <= d->low_w) return 0;
    double watts = to > from ? (sim_joules(d, to) - sim_joules(d, from)) / (to - from) : sim_watts(d, to);
    return fmin(fmax((watts - d->low_w) / (d->high_w - d->low_w), 0), 1);
}

/* Utilisation as drivers tell it: the share of the time in which anything ran, which is not how much of the card. A card
 * is busy while it draws more than a quarter of its range above its least power: on recorded cards with a meter beside
 * them that agrees with the driver's figure to 3 to 5 points (rms), and so does its window of 0.2 s. */
#define BUSY_LEVEL 0.25
#define BUSY_WINDOW_S 0.2
#define BUSY_LOOKS 100 /* in a window: whole percents */

static double busy_share(const gpu *g, double from, double to) {
    const sim_device *d = g->device;
    if (g->utilisation >= 0 || d->kind == SIM_LOAD || d->high_w <= d->low_w) return use_share(g, from, to);
    for (int i = 0; i < PROCESSES; i++)
        if (alive(&g->processes[i]) && g->processes[i].sm > 0) return use_share(g, from, to);
    double above = d->low_w + BUSY_LEVEL * (d->high_w - d->low_w);
    int busy = 0;
    for (int i = 0; i < BUSY_LOOKS; i++) busy += sim_raw_w(d, from + (i + 0.5) / BUSY_LOOKS * (to - from)) > above;
    return (double)busy / BUSY_LOOKS;
}

static double use_now(const gpu *g) {
    double t = g->power.phase + floor((sim_now() - g->power.phase) / BUSY_WINDOW_S) * BUSY_WINDOW_S;
    return busy_share(g, t - BUSY_WINDOW_S, t);
}

/* How fast the card works under its limit: power above idle grows with the third power of the clock. */
static double speed(const gpu *g) {
    double t = sim_now(), raw = sim_raw_w(g->device, t), limit = sim_event_at(g->device, t)->limit_w;
    double idle = g->device->low_w;
    if (raw <= limit || raw <= idle) return 1;
    return cbrt(fmax(limit - idle, 0.01 * (raw - idle)) / (raw - idle));
}

static uint64_t memory_used(const handle *h) {
    uint64_t used = h->instance < 0 ? 256ull << 20 : 16ull << 20;
    for (int i = 0; i < PROCESSES; i++) {
        const process *p = &h->card->processes[i];
        if (alive(p) && (h->instance < 0 || p->instance == h->instance)) used += p->memory;
    }
    return used;
}

#endif
