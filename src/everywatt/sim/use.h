/* The second half of nvml.c: what a card is doing (use, memory, clocks, processes), MIG and GPM. */
#ifndef EVERYWATT_USE_H
#define EVERYWATT_USE_H

/* ---- use ---- */

typedef struct {
    unsigned gpu, memory;
} rates;

API nvmlDeviceGetUtilizationRates(handle *h, rates *into) {
    WHOLE_CARD(h);
    NEEDS(into);
    if (g->instances) return NOT_SUPPORTED;
    double share = use_now(g);
    into->gpu = (unsigned)(share * 100 + 0.5);
    into->memory = (unsigned)(share * 40 + 0.5);
    return OK;
}
static int codec(handle *h, unsigned *use, unsigned *period) {
    NEEDS(use && period);
    if (h->card->instances) return NOT_SUPPORTED;
    *use = 0;
    *period = 167000;
    return OK;
}
API nvmlDeviceGetEncoderUtilization(handle *h, unsigned *use, unsigned *period) {
    WHOLE_CARD(h);
    return codec(h, use, period);
}
API nvmlDeviceGetDecoderUtilization(handle *h, unsigned *use, unsigned *period) {
    WHOLE_CARD(h);
    return codec(h, use, period);
}

typedef struct {
    unsigned long long total, free, used;
} memory_v1;
typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2;

API nvmlDeviceGetMemoryInfo(handle *h, memory_v1 *into) {
    CARD(h);
    NEEDS(into);
    into->total = h->instance < 0 ? g->memory : h->memory;
    into->used = memory_used(h);
    into->free = into->total > into->used ? into->total - into->used : 0;
    return OK;
}
API nvmlDeviceGetMemoryInfo_v2(handle *h, memory_v2 *into) {
    CARD(h);
    NEEDS(into);
    into->total = h->instance < 0 ? g->memory : h->memory;
    into->reserved = h->instance < 0 ? 256ull << 20 : 16ull << 20;
    into->used = memory_used(h) - into->reserved;
    into->free = into->total > memory_used(h) ? into->total - memory_used(h) : 0;
    return OK;
}
API nvmlDeviceGetBAR1MemoryInfo(handle *h, memory_v1 *into) {
    CARD(h);
    NEEDS(into);
    into->total = 256ull << 20;
    into->used = 2ull << 20;
    into->free = into->total - into->used;
    return OK;
}

/* Thirty degrees, and 0.15 more for each watt of the last ten seconds. */
static unsigned celsius(const gpu *g) {
    double t = sim_now();
    return (unsigned)fmin(30 + 0.15 * mean_w(g, t, 10), 95);
}
API nvmlDeviceGetTemperature(handle *h, int kind, unsigned *into) {
    WHOLE_CARD(h);
    NEEDS(into && kind == 0);
    *into = celsius(g);
    return OK;
}
typedef struct {
    unsigned version;
    int kind, celsius;
} temperature_v1;
API nvmlDeviceGetTemperatureV(handle *h, temperature_v1 *into) {
    WHOLE_CARD(h);
    NEEDS(into);
    if (into->version != 0x100000C) return VERSION_MISMATCH;
    NEEDS(into->kind == 0);
    into->celsius = (int)celsius(g);
    return OK;
}

static int clock_of(const gpu *g, int kind, int running, unsigned *into) {
    if (!into || kind < 0 || kind > 3) return INVALID_ARGUMENT;
    if (kind == 2) *into = (unsigned)g->memory_clock_mhz;
    else *into = (unsigned)(running ? g->clock_mhz * (use_now(g) > 0.005 ? speed(g) : 0.25) : g->clock_mhz);
    return OK;
}
API nvmlDeviceGetClockInfo(handle *h, int kind, unsigned *into) {
    WHOLE_CARD(h);
    return clock_of(g, kind, 1, into);
}
API nvmlDeviceGetMaxClockInfo(handle *h, int kind, unsigned *into) {
    WHOLE_CARD(h);
    return clock_of(g, kind, 0, into);
}
static int one_clock(unsigned mhz, unsigned *count, unsigned *into) {
    if (!count) return INVALID_ARGUMENT;
    unsigned room = *count;
    *count = 1;
    if (room < 1 || !into) return INSUFFICIENT_SIZE;
    into[0] = mhz;
    return OK;
}
API nvmlDeviceGetSupportedMemoryClocks(handle *h, unsigned *count, unsigned *into) {
    WHOLE_CARD(h);
    return one_clock((unsigned)g->memory_clock_mhz, count, into);
}
API nvmlDeviceGetSupportedGraphicsClocks(handle *h, unsigned memory_mhz, unsigned *count, unsigned *into) {
    WHOLE_CARD(h);
    if (memory_mhz != (unsigned)g->memory_clock_mhz) return NOT_FOUND;
    return one_clock((unsigned)g->clock_mhz, count, into);
}

static unsigned long long reasons(const gpu *g) {
    double t = sim_now();
    if (sim_raw_w(g->device, t) > sim_event_at(g->device, t)->limit_w) return 4; /* software power cap */
    return use_now(g) > 0.005 ? 0 : 1; /* idle */
}
ONE_VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reasons(g))
ONE_VALUE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reasons(g))
ONE_VALUE(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 5)
ONE_VALUE(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, 5)
ONE_VALUE(nvmlDeviceGetPerformanceState, int, use_now(g) > 0.005 ? 0 : 8)
ONE_VALUE(nvmlDeviceGetPowerState, int, use_now(g) > 0.005 ? 0 : 8)

API nvmlDeviceGetFanSpeed(handle *h, unsigned *into) {
    WHOLE_CARD(h);
    (void)into;
    return NOT_SUPPORTED; /* cooled passively, as cards in servers are */
}
/* On Linux there is one driver model only, and this memory has no error correction. */
API nvmlDeviceGetDriverModel(handle *h, unsigned *current, unsigned *pending) {
    WHOLE_CARD(h);
    (void)current;
    (void)pending;
    return NOT_SUPPORTED;
}
API nvmlDeviceGetDriverModel_v2(handle *h, unsigned *current, unsigned *pending) {
    return nvmlDeviceGetDriverModel(h, current, pending);
}
API nvmlDeviceGetTotalEccErrors(handle *h, int kind, int counter, unsigned long long *into) {
    WHOLE_CARD(h);
    (void)kind;
    (void)counter;
    (void)into;
    return NOT_SUPPORTED;
}
API nvmlDeviceGetPcieThroughput(handle *h, int counter, unsigned *into) {
    WHOLE_CARD(h);
    NEEDS(into && counter >= 0 && counter <= 1);
    *into = 0;
    return OK;
}

/* ---- processes ---- */

typedef struct {
    unsigned pid;
    unsigned long long memory;
} process_v1;
typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} process_v2;

static int here(const handle *h, const process *p, int type) {
    return alive(p) && p->type == type && (h->instance < 0 || p->instance == h->instance);
}

static int list_processes(const handle *h, int type, unsigned *count, void *into, size_t size) {
    NEEDS(count);
    unsigned n = 0, room = into ? *count : 0;
    for (int i = 0; i < PROCESSES; i++) {
        const process *p = &h->card->processes[i];
        if (!here(h, p, type)) continue;
        if (n < room) {
            unsigned place = p->instance >= 0 ? (unsigned)p->instance : 0xFFFFFFFFu;
            process_v2 row = {(unsigned)p->pid, p->memory, place, p->instance >= 0 ? 0 : 0xFFFFFFFFu};
            memcpy((char *)into + n * size, &row, size);
        }
        n++;
    }
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : OK;
}

#define PROCESS_LIST(call, type, row) \
    API call(handle *h, unsigned *count, void *into) { \
        NEEDS(h); \
        ENTER_(h, 1); \
        return list_processes(h, type, count, into, sizeof(row)); \
    }
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses, 1, process_v1)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v2, 1, process_v2)
PROCESS_LIST(nvmlDeviceGetComputeRunningProcesses_v3, 1, process_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses, 2, process_v1)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 2, process_v2)
PROCESS_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 2, process_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses, 3, process_v1)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 3, process_v2)
PROCESS_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 3, process_v2)

typedef struct {
    unsigned pid;
    unsigned long long timestamp;
    unsigned sm, memory, encoder, decoder;
} process_use;
typedef struct {
    unsigned long long timestamp;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
} process_use_v2;
typedef struct {
    unsigned version, count;
    unsigned long long since;
    process_use_v2 *into;
} process_uses;

/* Rows of processes that work, stamped with the last publication; NOT_FOUND where nothing is newer than `since`. */
static int process_uses_since(const gpu *g, unsigned long long since, unsigned *count, process_use *into) {
    unsigned long long stamp = (unsigned long long)utc_us(sim_published(&g->power, sim_now()));
    unsigned n = 0, room = into ? *count : 0;
    if (g->instances) return NOT_SUPPORTED;
    for (int i = 0; i < PROCESSES; i++) {
        const process *p = &g->processes[i];
        if (!alive(p) || stamp <= since) continue;
        if (n < room)
            into[n] = (process_use){(unsigned)p->pid, stamp, (unsigned)(p->sm * 100 + 0.5),
                                    (unsigned)(p->bandwidth * 100 + 0.5), 0, 0};
        n++;
    }
    *count = n;
    return n == 0 ? NOT_FOUND : n > room ? INSUFFICIENT_SIZE : OK;
}
API nvmlDeviceGetProcessUtilization(handle *h, process_use *into, unsigned *count, unsigned long long since) {
    NEEDS(h && count);
    ENTER_(h, 1);
    if (h->instance >= 0) return NOT_SUPPORTED;
    return process_uses_since(h->card, since, count, into);
}
API nvmlDeviceGetProcessesUtilizationInfo(handle *h, process_uses *uses) {
    process_use rows[PROCESSES];
    NEEDS(h && uses);
    ENTER_(h, 1);
    if (h->instance >= 0) return NOT_SUPPORTED;
    unsigned n = PROCESSES, room = uses->into ? uses->count : 0;
    int result = process_uses_since(h->card, uses->since, &n, rows);
    if (result != OK) return result;
    uses->count = n;
    if (n > room) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < n; i++)
        uses->into[i] = (process_use_v2){rows[i].timestamp, rows[i].pid, rows[i].sm, rows[i].memory, 0, 0, 0, 0};
    return OK;
}

/* ---- MIG ---- */

#define BOARD_SLICES 7

API nvmlDeviceGetMigMode(handle *h, unsigned *current, unsigned *pending) {
    CARD(h);
    NEEDS(current && pending);
    if (h->instance >= 0) return NOT_SUPPORTED;
    if (!g->instances && g->major < 8) return NOT_SUPPORTED;
    *current = *pending = g->instances > 0;
    return OK;
}
ONE_VALUE(nvmlDeviceGetMaxMigDeviceCount, unsigned, g->instances ? BOARD_SLICES : 0)
API nvmlDeviceGetMigDeviceHandleByIndex(handle *h, unsigned index, handle **into) {
    WHOLE_CARD(h);
    NEEDS(into);
    if (index >= (unsigned)g->instances) return NOT_FOUND;
    *into = &g->mig[index];
    return OK;
}
API nvmlDeviceIsMigDeviceHandle(handle *h, unsigned *into) {
    CARD(h);
    NEEDS(into);
    *into = h->instance >= 0;
    return OK;
}
API nvmlDeviceGetGpuInstanceId(handle *h, unsigned *into) {
    CARD(h);
    NEEDS(into);
    if (h->instance < 0) return NOT_SUPPORTED;
    *into = (unsigned)h->instance;
    return OK;
}
API nvmlDeviceGetComputeInstanceId(handle *h, unsigned *into) {
    CARD(h);
    NEEDS(into);
    if (h->instance < 0) return NOT_SUPPORTED;
    *into = 0;
    return OK;
}
API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle *h, handle **into) {
    CARD(h);
    NEEDS(into);
    if (h->instance < 0) return INVALID_ARGUMENT;
    *into = &g->self;
    return OK;
}
typedef struct {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mib;
} attributes;
API nvmlDeviceGetAttributes_v2(handle *h, attributes *into) {
    CARD(h);
    NEEDS(into);
    if (h->instance < 0) return NOT_SUPPORTED;
    memset(into, 0, sizeof *into);
    into->multiprocessors = 14u * (unsigned)h->slices;
    into->gpu_slices = into->compute_slices = (unsigned)h->slices;
    into->memory_mib = h->memory >> 20;
    return OK;
}

/* ---- GPM: means between two samples ---- */

typedef struct {
    unsigned version, supported;
} gpm_support;
typedef struct {
    const gpu *card;
    int instance; /* of MIG, -1 for the card */
    double t;
} gpm_sample;
typedef struct {
    unsigned id;
    int result;
    double value;
    const char *short_name, *long_name, *unit;
} gpm_metric;
typedef struct {
    unsigned version, count;
    gpm_sample *first, *second;
    gpm_metric metric[];
} gpm_request;

API nvmlGpmQueryDeviceSupport(handle *h, gpm_support *into) {
    CARD(h);
    NEEDS(into);
    into->supported = g->gpm ? 1 : 0;
    return OK;
}
API nvmlGpmSampleAlloc(gpm_sample **into) {
    SYSTEM;
    NEEDS(into);
    *into = calloc(1, sizeof **into);
    return *into ? OK : 20;
}
API nvmlGpmSampleFree(gpm_sample *s) {
    SYSTEM;
    free(s);
    return OK;
}
static int gpm_take(const gpu *g, int instance, gpm_sample *s) {
    if (!g->gpm) return NOT_SUPPORTED;
    *s = (gpm_sample){g, instance, sim_now()};
    return OK;
}
API nvmlGpmSampleGet(handle *h, gpm_sample *s) {
    WHOLE_CARD(h);
    NEEDS(s);
    return gpm_take(g, -1, s);
}
API nvmlGpmMigSampleGet(handle *h, unsigned instance, gpm_sample *s) {
    WHOLE_CARD(h);
    NEEDS(s && instance < (unsigned)g->instances);
    return gpm_take(g, (int)instance, s);
}

/* The share of a MIG instance in use, from what its processes declared of the card. */
static double instance_share(const gpu *g, int instance) {
    double declared = 0;
    for (int i = 0; i < PROCESSES; i++)
        if (alive(&g->processes[i]) && g->processes[i].instance == instance) declared += g->processes[i].sm;
    return fmin(declared * BOARD_SLICES / g->mig[instance].slices, 1);
}

API nvmlGpmMetricsGet(gpm_request *request) {
    SYSTEM;
    NEEDS(request && request->first && request->second && request->first->card);
    NEEDS(request->first->card == request->second->card && request->second->t > request->first->t);
    const gpm_sample *first = request->first, *second = request->second;
    double share = 100 * (first->instance < 0 ? use_share(first->card, first->t, second->t)
                                              : instance_share(first->card, first->instance));
    for (unsigned i = 0; i < request->count; i++) {
        gpm_metric *m = &request->metric[i];
        m->result = OK;
        m->unit = "%";
        switch (m->id) {
        case 1: m->value = share, m->short_name = "GRAPHICS_UTIL"; break;
        case 2: m->value = share, m->short_name = "SM_UTIL"; break;
        case 3: m->value = share * 0.5, m->short_name = "SM_OCCUPANCY"; break;
        case 5: m->value = share * 0.6, m->short_name = "ANY_TENSOR_UTIL"; break;
        case 10: m->value = share * 0.4, m->short_name = "DRAM_BW_UTIL"; break;
        default: m->value = 0, m->result = NOT_SUPPORTED, m->short_name = "";
        }
        m->long_name = m->short_name;
    }
    return OK;
}

#endif
