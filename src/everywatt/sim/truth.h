/* The truth of a simulated machine, in closed form: what every library of the laboratory shares.
 *
 * A device draws P(t), with t in seconds since the machine's t0 on CLOCK_MONOTONIC, so every process sees the same. P is
 * a table of straight pieces (constant, square, ramp, step, telegraph, replay), a sine, or follows a load. It is clipped
 * at the device's power limit. F(t), the joules since t0, is a formula: no samples are added up anywhere.
 *
 * What changes while the machine runs (the limit, the load) is an append-only list of events in a mapped file. Each
 * event holds F at its time, so F(t) needs the last event before t and nothing older.
 *
 * The same formulas in Python are in curves.py; a test holds them against each other.
 */
#ifndef EVERYWATT_TRUTH_H
#define EVERYWATT_TRUTH_H

#include <fcntl.h>
#include <locale.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SIM_FN static __attribute__((unused))
#define SIM_DEVICES 64
#define SIM_TERMS 16
#define SIM_PATH 1024
#define SIM_PI 3.14159265358979323846

enum { SIM_TABLE = 0, SIM_SINE = 1, SIM_LOAD = 2 };

typedef struct {
    double t, len, p0, p1, cum;
} sim_piece;

typedef struct {
    double t, joules, raw_w, limit_w;
} sim_event;

typedef struct {
    uint64_t count, room, pad[6];
    sim_event event[];
} sim_events;

typedef struct {
    char id[48];
    int kind;
    double mean, amplitude, period; /* period 0: the table is not repeated */
    double low_w, high_w;
    double total_j; /* of one period of the table */
    size_t pieces;
    const sim_piece *piece;
    sim_events *events;
    char events_path[SIM_PATH];
} sim_device;

static int64_t sim_t0_ns;
static char sim_folder[SIM_PATH];
static sim_device sim_devices[SIM_DEVICES];
static int sim_device_count;

SIM_FN double sim_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)((int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec - sim_t0_ns) * 1e-9;
}

SIM_FN size_t sim_find_piece(const sim_device *d, double x) {
    size_t low = 0, high = d->pieces;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (d->piece[middle].t <= x) low = middle;
        else high = middle;
    }
    return low;
}

/* Joules of one straight piece from its start to x seconds later, clipped at limit. */
SIM_FN double sim_piece_j(const sim_piece *s, double x, double limit) {
    double slope = s->len > 0 && isfinite(s->len) ? (s->p1 - s->p0) / s->len : 0, end = s->p0 + slope * x;
    if (s->p0 <= limit && end <= limit) return (s->p0 + end) / 2 * x;
    if (s->p0 >= limit && end >= limit) return limit * x;
    double cross = (limit - s->p0) / slope;
    if (s->p0 < limit) return (s->p0 + limit) / 2 * cross + limit * (x - cross);
    return limit * cross + (limit + end) / 2 * (x - cross);
}

SIM_FN double sim_table_part(const sim_device *d, double x, double limit) {
    size_t last = sim_find_piece(d, x);
    double sum = 0;
    if (x < 0) return fmin(d->piece[0].p0, limit) * x; /* before t0 the first power is held */
    if (limit >= d->high_w) sum = d->piece[last].cum;
    else
        for (size_t i = 0; i < last; i++) sum += sim_piece_j(&d->piece[i], d->piece[i].len, limit);
    return sum + sim_piece_j(&d->piece[last], x - d->piece[last].t, limit);
}

SIM_FN double sim_sine_part(const sim_device *d, double x, double limit) {
    double omega = 2 * SIM_PI / d->period, level = (limit - d->mean) / d->amplitude;
    if (level >= 1) return d->mean * x + d->amplitude / omega * (1 - cos(omega * x));
    if (level <= -1) return limit * x;
    double rise = asin(level), a = fmod(rise + 2 * SIM_PI, 2 * SIM_PI) / omega, b = (SIM_PI - rise) / omega;
    double edge[4] = {0, fmin(fmin(a, b), x), fmin(fmax(a, b), x), x}, sum = 0;
    for (int i = 0; i < 3; i++) {
        double from = edge[i], to = edge[i + 1];
        if (sin(omega * (from + to) / 2) > level) sum += limit * (to - from);
        else sum += d->mean * (to - from) + d->amplitude / omega * (cos(omega * from) - cos(omega * to));
    }
    return sum;
}

/* Joules from t0 to t of the curve itself under one limit. */
SIM_FN double sim_curve_j(const sim_device *d, double t, double limit) {
    double whole = 0, x = t, one = 0;
    if (d->period > 0) {
        whole = floor(t / d->period);
        x = t - whole * d->period;
    }
    if (d->kind == SIM_SINE) {
        if (whole != 0) one = sim_sine_part(d, d->period, limit);
        return whole * one + sim_sine_part(d, x, limit);
    }
    if (whole != 0) one = limit >= d->high_w ? d->total_j : sim_table_part(d, d->period, limit);
    return whole * one + sim_table_part(d, x, limit);
}

SIM_FN double sim_curve_w(const sim_device *d, double t) {
    if (d->kind == SIM_SINE) return d->mean + d->amplitude * sin(2 * SIM_PI * t / d->period);
    double x = d->period > 0 ? t - floor(t / d->period) * d->period : fmax(t, 0);
    const sim_piece *s = &d->piece[sim_find_piece(d, x)];
    double slope = s->len > 0 && isfinite(s->len) ? (s->p1 - s->p0) / s->len : 0;
    return s->p0 + slope * (x - s->t);
}

/* The last event at or before t; the first one where t is before all of them. */
SIM_FN const sim_event *sim_event_at(const sim_device *d, double t) {
    uint64_t count = __atomic_load_n(&d->events->count, __ATOMIC_ACQUIRE), low = 0, high = count;
    const sim_event *event = d->events->event;
    if (event[count - 1].t <= t) return &event[count - 1];
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (event[middle].t <= t) low = middle;
        else high = middle;
    }
    return &event[low];
}

SIM_FN double sim_joules(const sim_device *d, double t) {
    const sim_event *e = sim_event_at(d, t);
    if (d->kind == SIM_LOAD) return e->joules + fmin(e->raw_w, e->limit_w) * (t - e->t);
    return e->joules + sim_curve_j(d, t, e->limit_w) - sim_curve_j(d, e->t, e->limit_w);
}

SIM_FN double sim_raw_w(const sim_device *d, double t) {
    return d->kind == SIM_LOAD ? sim_event_at(d, t)->raw_w : sim_curve_w(d, t);
}

SIM_FN double sim_watts(const sim_device *d, double t) { return fmin(sim_raw_w(d, t), sim_event_at(d, t)->limit_w); }

SIM_FN int sim_set_limit(sim_device *d, double limit_w) {
    int fd = open(d->events_path, O_RDWR | O_CLOEXEC), done = -1;
    if (fd < 0) return -1;
    flock(fd, LOCK_EX);
    uint64_t count = d->events->count;
    if (count < d->events->room) {
        double t = sim_now();
        const sim_event *last = &d->events->event[count - 1];
        if (t < last->t) t = last->t;
        d->events->event[count] = (sim_event){t, sim_joules(d, t), last->raw_w, limit_w};
        __atomic_store_n(&d->events->count, count + 1, __ATOMIC_RELEASE);
        done = 0;
    }
    flock(fd, LOCK_UN);
    close(fd);
    return done;
}

/* A number in [0, 1) that depends only on its arguments: jitter that every process agrees on. */
SIM_FN double sim_chance(uint64_t seed, int64_t k) {
    uint64_t x = seed * 0x9E3779B97F4A7C15u + (uint64_t)k;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53;
}

typedef struct {
    double period, phase, jitter, drop;
    uint64_t seed;
} sim_schedule;

SIM_FN double sim_publication(const sim_schedule *s, int64_t k) {
    return s->phase + (double)k * s->period + s->jitter * sim_chance(s->seed, k);
}

/* The number of the last publication at or before t. */
SIM_FN int64_t sim_last(const sim_schedule *s, double t) {
    int64_t k = (int64_t)floor((t - s->phase) / s->period);
    while (sim_publication(s, k) > t || (s->drop > 0 && sim_chance(~s->seed, k) < s->drop)) k--;
    return k;
}

SIM_FN double sim_published(const sim_schedule *s, double t) {
    return s->period > 0 ? sim_publication(s, sim_last(s, t)) : t;
}

SIM_FN void *sim_map(const char *path, int writable, size_t *size) {
    int fd = open(path, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return NULL;
    if (fstat(fd, &st) != 0 || st.st_size == 0) {
        close(fd);
        return NULL;
    }
    void *where = mmap(NULL, (size_t)st.st_size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    close(fd);
    if (size) *size = (size_t)st.st_size;
    return where == MAP_FAILED ? NULL : where;
}

SIM_FN void sim_path(char *into, const char *name) {
    snprintf(into, SIM_PATH, "%.*s/%.200s", SIM_PATH - 210, sim_folder, name);
}

SIM_FN sim_device *sim_device_named(const char *id) {
    for (int i = 0; i < sim_device_count; i++)
        if (strcmp(sim_devices[i].id, id) == 0) return &sim_devices[i];
    return NULL;
}

/* `device ID KIND LOW HIGH MEAN AMPLITUDE PERIOD TOTAL`; tables and events are in files that carry the id. */
SIM_FN int sim_add_device(const char *line) {
    if (sim_device_count == SIM_DEVICES) return -1;
    sim_device *d = &sim_devices[sim_device_count];
    char kind[16], name[96], path[SIM_PATH];
    if (sscanf(line, "%47s %15s %lf %lf %lf %lf %lf %lf", d->id, kind, &d->low_w, &d->high_w, &d->mean, &d->amplitude,
               &d->period, &d->total_j) != 8)
        return -1;
    d->kind = strcmp(kind, "sine") == 0 ? SIM_SINE : strcmp(kind, "load") == 0 ? SIM_LOAD : SIM_TABLE;
    snprintf(name, sizeof name, "events-%s", d->id);
    sim_path(d->events_path, name);
    d->events = sim_map(d->events_path, 1, NULL);
    if (!d->events) d->events = sim_map(d->events_path, 0, NULL);
    if (!d->events) return -1;
    if (d->kind == SIM_TABLE) {
        size_t size = 0;
        snprintf(name, sizeof name, "curve-%s", d->id);
        sim_path(path, name);
        d->piece = sim_map(path, 0, &size);
        d->pieces = size / sizeof(sim_piece);
        if (!d->piece) return -1;
    }
    sim_device_count++;
    return 0;
}

/* Reads $EVERYWATT_SIM/machine.txt. Lines that are not about devices go to `other`. Returns 0 or -1. */
SIM_FN int sim_load(int (*other)(const char *key, const char *value)) {
    const char *folder = getenv("EVERYWATT_SIM");
    char path[SIM_PATH], line[4096];
    if (!folder || strlen(folder) >= sizeof sim_folder) return -1;
    strcpy(sim_folder, folder);
    sim_path(path, "machine.txt");
    FILE *file = fopen(path, "re");
    if (!file) return -1;
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0), before = uselocale(plain); /* numbers with a point */
    sim_device_count = 0;
    int bad = 0;
    while (!bad && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *value = strchr(line, ' ');
        if (!value) continue;
        *value++ = 0;
        if (strcmp(line, "t0_ns") == 0) sim_t0_ns = strtoll(value, NULL, 10);
        else if (strcmp(line, "device") == 0) bad = sim_add_device(value);
        else bad = other(line, value);
    }
    fclose(file);
    uselocale(before);
    if (plain) freelocale(plain);
    return bad;
}

#endif
