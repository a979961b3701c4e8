/* A libnvidia-ml.so.1 whose cards have a known truth (truth.h) and a sensor in front of it (card.h).
 *
 * Struct layouts are those of the public NVML interface. Calls that are not here are missing symbols, as on an old driver.
 */
#define _GNU_SOURCE
#include "card.h"

/* ---- library ---- */

API nvmlInit_v2(void) { return open_machine(); }
API nvmlInit(void) { return open_machine(); }
API nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return open_machine();
}
API nvmlShutdown(void) {
    pthread_mutex_lock(&lock);
    int result = users > 0 ? OK : UNINITIALIZED;
    if (users > 0 && --users == 0) loaded = 0; /* the next one to come reads EVERYWATT_SIM again */
    pthread_mutex_unlock(&lock);
    return result;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int result) {
    switch (result) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *into, unsigned length) {
    SYSTEM;
    return put(driver, into, length);
}
API nvmlSystemGetNVMLVersion(char *into, unsigned length) {
    char version[96];
    SYSTEM;
    snprintf(version, sizeof version, "13.%s", driver);
    return put(version, into, length);
}
API nvmlSystemGetCudaDriverVersion(int *version) {
    SYSTEM;
    NEEDS(version);
    *version = 13000;
    return OK;
}
API nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

API nvmlSystemGetProcessName(unsigned pid, char *into, unsigned length) {
    char path[64], name[1024];
    SYSTEM;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NOT_FOUND;
    size_t n = fread(name, 1, sizeof name - 1, file);
    fclose(file);
    name[n] = 0;
    return put(name, into, length);
}

API nvmlDeviceGetCount_v2(unsigned *count) {
    SYSTEM;
    NEEDS(count);
    *count = (unsigned)gpu_count;
    return OK;
}
API nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static int give(gpu *g, handle **into) {
    if (!into) return INVALID_ARGUMENT;
    if (lost(g)) return GPU_IS_LOST;
    *into = &g->self;
    return OK;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, handle **into) {
    SYSTEM;
    if (index >= (unsigned)gpu_count) return INVALID_ARGUMENT;
    return give(&gpus[index], into);
}
API nvmlDeviceGetHandleByIndex(unsigned index, handle **into) { return nvmlDeviceGetHandleByIndex_v2(index, into); }

API nvmlDeviceGetHandleByUUID(const char *uuid, handle **into) {
    SYSTEM;
    NEEDS(uuid);
    NEEDS(into);
    for (int i = 0; i < gpu_count; i++) {
        gpu *g = &gpus[i];
        if (strcmp(g->uuid, uuid) == 0) return give(g, into);
        for (int k = 0; k < g->instances; k++)
            if (strcmp(g->mig[k].uuid, uuid) == 0) {
                *into = &g->mig[k];
                return OK;
            }
    }
    return NOT_FOUND;
}
API nvmlDeviceGetHandleBySerial(const char *serial, handle **into) {
    SYSTEM;
    NEEDS(serial);
    for (int i = 0; i < gpu_count; i++)
        if (strcmp(gpus[i].serial, serial) == 0) return give(&gpus[i], into);
    return NOT_FOUND;
}
API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, handle **into) {
    SYSTEM;
    NEEDS(bus);
    for (int i = 0; i < gpu_count; i++) {
        size_t full = strlen(gpus[i].bus), given = strlen(bus);
        if (given >= 7 && given <= full && strcasecmp(gpus[i].bus + full - given, bus) == 0) return give(&gpus[i], into);
    }
    return NOT_FOUND;
}
API nvmlDeviceGetHandleByPciBusId(const char *bus, handle **into) { return nvmlDeviceGetHandleByPciBusId_v2(bus, into); }

/* ---- what a card is ---- */

API nvmlDeviceGetName(handle *h, char *into, unsigned length) {
    char name[160];
    CARD(h);
    if (h->instance < 0) return put(g->name, into, length);
    snprintf(name, sizeof name, "%s MIG %s", g->name, h->profile);
    return put(name, into, length);
}
API nvmlDeviceGetUUID(handle *h, char *into, unsigned length) {
    CARD(h);
    return put(h->instance < 0 ? g->uuid : h->uuid, into, length);
}
API nvmlDeviceGetSerial(handle *h, char *into, unsigned length) {
    WHOLE_CARD(h);
    return put(g->serial, into, length);
}
#define ONE_VALUE(call, type, value) \
    API call(handle *h, type *into) { \
        WHOLE_CARD(h); \
        NEEDS(into); \
        *into = (type)(value); \
        return OK; \
    }
API nvmlDeviceGetIndex(handle *h, unsigned *into) {
    CARD(h);
    NEEDS(into);
    *into = h->instance < 0 ? (unsigned)g->index : (unsigned)h->instance;
    return OK;
}
ONE_VALUE(nvmlDeviceGetMinorNumber, unsigned, g->index)
ONE_VALUE(nvmlDeviceGetBrand, int, 2)
ONE_VALUE(nvmlDeviceGetArchitecture, unsigned, g->major >= 10 ? 10 : g->major == 9 ? 9 : g->major == 8 ? 7 : 5)
ONE_VALUE(nvmlDeviceGetComputeMode, int, 0)
ONE_VALUE(nvmlDeviceGetPersistenceMode, int, 1)
ONE_VALUE(nvmlDeviceGetDisplayMode, int, 0)
ONE_VALUE(nvmlDeviceGetDisplayActive, int, 0)

API nvmlDeviceGetCudaComputeCapability(handle *h, int *major, int *minor) {
    CARD(h);
    NEEDS(major && minor);
    *major = g->major;
    *minor = g->minor;
    return OK;
}

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} pci_v3;
typedef struct {
    char bus_id[16];
    unsigned domain, bus, device, id, subsystem, reserved[4];
} pci_v2;

API nvmlDeviceGetPciInfo_v3(handle *h, pci_v3 *into) {
    CARD(h);
    NEEDS(into);
    memset(into, 0, sizeof *into);
    sscanf(g->bus, "%x:%x:%x", &into->domain, &into->bus, &into->device);
    into->id = 0x20B010DE;
    snprintf(into->legacy, sizeof into->legacy, "%.12s", g->bus + 4);
    snprintf(into->bus_id, sizeof into->bus_id, "%s", g->bus);
    return OK;
}
API nvmlDeviceGetPciInfo_v2(handle *h, pci_v2 *into) {
    pci_v3 full;
    NEEDS(into);
    int result = nvmlDeviceGetPciInfo_v3(h, &full);
    if (result != OK) return result;
    memset(into, 0, sizeof *into);
    memcpy(into, &full, offsetof(pci_v3, bus_id));
    return OK;
}

/* ---- power and energy ---- */

ONE_VALUE(nvmlDeviceGetPowerUsage, unsigned, power_now_mw(g, g->average))
ONE_VALUE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, energy_mj(g))
ONE_VALUE(nvmlDeviceGetPowerManagementMode, int, 1)
ONE_VALUE(nvmlDeviceGetPowerManagementLimit, unsigned, sim_event_at(g->device, sim_now())->limit_w * 1e3 + 0.5)
ONE_VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned, sim_event_at(g->device, sim_now())->limit_w * 1e3 + 0.5)
ONE_VALUE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, g->limit_w * 1e3 + 0.5)

API nvmlDeviceGetPowerManagementLimitConstraints(handle *h, unsigned *low, unsigned *high) {
    WHOLE_CARD(h);
    NEEDS(low && high);
    *low = (unsigned)(g->limit_min_w * 1e3 + 0.5);
    *high = (unsigned)(g->limit_max_w * 1e3 + 0.5);
    return OK;
}
static int set_limit(gpu *g, unsigned limit_mw) {
    double limit_w = limit_mw * 1e-3;
    if (g->denied) return NO_PERMISSION;
    if (limit_w < g->limit_min_w - 1e-6 || limit_w > g->limit_max_w + 1e-6) return INVALID_ARGUMENT;
    return sim_set_limit(g->device, limit_w) == 0 ? OK : NO_PERMISSION;
}
API nvmlDeviceSetPowerManagementLimit(handle *h, unsigned limit_mw) {
    WHOLE_CARD(h);
    return set_limit(g, limit_mw);
}
typedef struct {
    unsigned version, scope, value_mw;
} power_value;
API nvmlDeviceSetPowerManagementLimit_v2(handle *h, const power_value *value) {
    WHOLE_CARD(h);
    NEEDS(value);
    if (value->scope != 0) return NOT_SUPPORTED;
    return set_limit(g, value->value_mw);
}
API nvmlDeviceSetPersistenceMode(handle *h, int mode) {
    WHOLE_CARD(h);
    if (g->denied) return NO_PERMISSION;
    return mode == 1 ? OK : NOT_SUPPORTED;
}

typedef union {
    double real;
    unsigned number;
    unsigned long long large;
} value;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int type, result;
    value value;
} field_value;

static int field(const gpu *g, field_value *f) {
    double limit_w = sim_event_at(g->device, sim_now())->limit_w;
    f->type = 1;
    if (f->scope != 0) return NOT_SUPPORTED;
    switch (f->field) {
    case 83:
        f->type = 3;
        f->value.large = energy_mj(g);
        return OK;
    case 185: f->value.number = power_now_mw(g, g->average); return OK;
    case 186: f->value.number = power_now_mw(g, g->window); return OK;
    case 187: f->value.number = (unsigned)(g->limit_min_w * 1e3 + 0.5); return OK;
    case 188: f->value.number = (unsigned)(g->limit_max_w * 1e3 + 0.5); return OK;
    case 189: f->value.number = (unsigned)(g->limit_w * 1e3 + 0.5); return OK;
    case 190:
    case 192: f->value.number = (unsigned)(limit_w * 1e3 + 0.5); return OK;
    default: return NOT_SUPPORTED;
    }
}

API nvmlDeviceGetFieldValues(handle *h, int count, field_value *fields) {
    char name[32];
    WHOLE_CARD(h);
    NEEDS(fields && count > 0);
    for (int i = 0; i < count; i++) {
        double before = sim_now();
        memset(&fields[i].value, 0, sizeof fields[i].value);
        snprintf(name, sizeof name, "field:%u", fields[i].field);
        fields[i].result = listed(g->unsupported, name) ? NOT_SUPPORTED : field(g, &fields[i]);
        fields[i].timestamp = utc_us(before);
        fields[i].latency = (int64_t)((sim_now() - before) * 1e6);
    }
    return OK;
}

typedef struct {
    unsigned long long timestamp;
    value value;
} sample;

/* The driver's own buffer: the last publications, oldest first, newer than `since` (µs since 1970). */
API nvmlDeviceGetSamples(handle *h, int kind, unsigned long long since, int *type, unsigned *count, sample *into) {
    WHOLE_CARD(h);
    NEEDS(type && count);
    if (g->samples <= 0 || kind < 0 || kind > 1 || g->power.period <= 0) return NOT_SUPPORTED;
    *type = 1;
    if (!into) {
        *count = (unsigned)g->samples;
        return OK;
    }
    double now = sim_now();
    int64_t last = sim_last(&g->power, now);
    unsigned n = 0;
    for (int64_t k = last - g->samples + 1; k <= last && n < *count; k++) {
        if (g->power.drop > 0 && sim_chance(~g->power.seed, k) < g->power.drop) continue;
        double t = sim_publication(&g->power, k);
        unsigned long long stamp = (unsigned long long)utc_us(t);
        if (stamp <= since) continue;
        into[n].timestamp = stamp;
        into[n].value.large = 0;
        into[n].value.number = kind == 0 ? reading_mw(g, t, g->window)
                                         : (unsigned)(use_share(g, t - g->power.period, t) * 100 + 0.5);
        n++;
    }
    *count = n;
    return n ? OK : NOT_FOUND;
}

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

API nvmlDeviceGetMigMode(handle *h, unsigned *current, unsigned *pending) {
    CARD(h);
    NEEDS(current && pending);
    if (h->instance >= 0) return NOT_SUPPORTED;
    if (!g->instances && g->major < 8) return NOT_SUPPORTED;
    *current = *pending = g->instances > 0;
    return OK;
}
ONE_VALUE(nvmlDeviceGetMaxMigDeviceCount, unsigned, g->instances ? 7 : 0)
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
API nvmlGpmSampleGet(handle *h, gpm_sample *s) {
    WHOLE_CARD(h);
    NEEDS(s);
    if (!g->gpm) return NOT_SUPPORTED;
    s->card = g;
    s->t = sim_now();
    return OK;
}
API nvmlGpmMetricsGet(gpm_request *request) {
    SYSTEM;
    NEEDS(request && request->first && request->second && request->first->card);
    NEEDS(request->first->card == request->second->card && request->second->t > request->first->t);
    double share = use_share(request->first->card, request->first->t, request->second->t) * 100;
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
