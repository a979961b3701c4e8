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
    case LIBRARY_NOT_FOUND: return "NVML Shared Library Not Found";
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

/* Scope 1 is the module (the GPU and a constant power beside it), scope 2 the GPU's memory, of which only the average is
 * known, as on Grace Blackwell. */
static int scoped(const gpu *g, field_value *f) {
    int module = f->scope == 1 && g->module_w >= 0, memory = f->scope == 2 && g->memory_share >= 0;
    if (module && f->field == 83) {
        f->type = 3;
        f->value.large = scoped_energy_mj(g, 1);
        return OK;
    }
    if (f->field == 185 && memory) {
        f->value.number = (unsigned)(power_now_mw(g, g->average) * g->memory_share + 0.5);
        return OK;
    }
    if (!module || (f->field != 185 && f->field != 186)) return NOT_SUPPORTED;
    f->value.number = power_now_mw(g, f->field == 185 ? g->average : g->window) + (unsigned)(g->module_w * 1e3 + 0.5);
    return OK;
}

static int field(const gpu *g, field_value *f) {
    double limit_w = sim_event_at(g->device, sim_now())->limit_w;
    f->type = 1;
    if (f->scope != 0) return scoped(g, f);
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
                                         : (unsigned)(busy_share(g, t - BUSY_WINDOW_S, t) * 100 + 0.5);
        n++;
    }
    *count = n;
    return n ? OK : NOT_FOUND;
}

#include "use.h"
