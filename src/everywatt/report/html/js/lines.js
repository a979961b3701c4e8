// What a line shows between two times: every tick where they are there and fit on the screen, else lowest, highest and
// mean of groups of them. Minima of minima and maxima of maxima: nothing that stands out is lost.
"use strict";

// The first place whose value is not below x.
everywatt.place = function (values, x) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle + 1; else high = middle;
  }
  return low;
};

everywatt.Line = class {
  constructor(about, columns) {
    this.about = about;
    this.held = about.held;
    this.t = columns.t.map((us) => us / 1e6);
    this.exact = about.exact;
    if (this.exact) {
      this.low = this.high = this.mean = columns.v;
      this.first = this.t[0];
    } else {
      this.low = columns.low;
      this.high = columns.high;
      this.mean = columns.mean;
      this.first = about.first_us / 1e6;
      this.parts = new Map();
      this.pt = columns.pt.map((us) => us / 1e6);
      this.pv = columns.pv;
      columns.parts.forEach((bucket, i) => this.parts.set(bucket, i * about.per));
    }
    this.sum = null;
  }

  static async of(about) {
    return new everywatt.Line(about, await everywatt.unpack(about.data));
  }

  // Ticks in bucket i; the last may have fewer.
  ticks(i) {
    return Math.min(this.about.per, this.about.n - i * this.about.per);
  }

  // {t, low, high, mean, exact} between a and b, in about `most` points or fewer.
  between(a, b, most) {
    const from = Math.max(0, everywatt.place(this.t, a) - 1);
    const to = Math.min(this.t.length - 1, everywatt.place(this.t, b));
    const count = to - from + 1;
    const out = { t: [], low: [], high: [], mean: [], exact: this.exact && count <= most };
    if (count <= 0) return out;
    if (this.exact || count > most) {
      this.grouped(out, from, to, Math.max(1, Math.ceil(count / most)));
      return out;
    }
    let whole = 0;
    for (let i = from; i <= to; i++) if (this.parts.has(i)) whole += this.ticks(i);
    const open = whole <= 4 * most;
    out.exact = open;
    for (let i = from; i <= to; i++) {
      const within = this.t[i] >= a && (i === 0 ? this.first : this.t[i - 1]) <= b;
      if (open && this.parts.has(i)) this.open(out, i);
      else {
        this.push(out, this.t[i], this.low[i], this.high[i], this.mean[i]);
        if (within) out.exact = false;
      }
    }
    return out;
  }

  push(out, t, low, high, mean) {
    const hole = Number.isNaN(mean);
    out.t.push(t);
    out.low.push(hole ? null : low);
    out.high.push(hole ? null : high);
    out.mean.push(hole ? null : mean);
  }

  // Every tick of a bucket.
  open(out, bucket) {
    const at = this.parts.get(bucket);
    for (let i = at; i < at + this.ticks(bucket); i++) this.push(out, this.pt[i], this.pv[i], this.pv[i], this.pv[i]);
  }

  grouped(out, from, to, size) {
    for (let start = from; start <= to; start += size) {
      const end = Math.min(to, start + size - 1);
      if (size === 1) {
        this.push(out, this.t[start], this.low[start], this.high[start], this.mean[start]);
        continue;
      }
      let low = Infinity, high = -Infinity, area = 0, length = 0;
      for (let i = start; i <= end; i++) {
        if (Number.isNaN(this.mean[i])) continue;
        const dt = this.held ? this.t[i] - (i === 0 ? this.first : this.t[i - 1]) : 1;
        if (this.low[i] < low) low = this.low[i];
        if (this.high[i] > high) high = this.high[i];
        area += this.mean[i] * dt;
        length += dt;
      }
      this.push(out, this.t[end], low, high, high === -Infinity ? NaN : length > 0 ? area / length : (low + high) / 2);
    }
  }

  // What it adds up to (value × seconds) between a and b: from ticks and means, without an interval.
  integral(a, b) {
    if (this.sum === null) {
      this.sum = new Float64Array(this.t.length);
      let total = 0;
      for (let i = 0; i < this.t.length; i++) {
        const dt = this.t[i] - (i === 0 ? this.first : this.t[i - 1]);
        if (!Number.isNaN(this.mean[i])) total += this.mean[i] * dt;
        this.sum[i] = total;
      }
    }
    return this.upTo(b) - this.upTo(a);
  }

  upTo(x) {
    const i = everywatt.place(this.t, x);
    if (i >= this.t.length) return this.sum[this.t.length - 1];
    const start = i === 0 ? this.first : this.t[i - 1], before = i === 0 ? 0 : this.sum[i - 1];
    if (x <= start) return before;
    if (!this.exact && this.parts.has(i)) return before + this.within(i, start, x);
    return before + (this.sum[i] - before) * (x - start) / Math.max(this.t[i] - start, 1e-12);
  }

  // The same inside one bucket whose ticks are there.
  within(bucket, start, x) {
    const at = this.parts.get(bucket);
    let total = 0, from = start;
    for (let i = at; i < at + this.ticks(bucket) && from < x; i++) {
      if (!Number.isNaN(this.pv[i])) total += this.pv[i] * (Math.min(this.pt[i], x) - from);
      from = this.pt[i];
    }
    return total;
  }

  // {value, start, end} of the highest tick; of its bucket where its ticks are not there.
  peak() {
    let best = -1;
    for (let i = 0; i < this.high.length; i++) if (this.high[i] > (best < 0 ? -Infinity : this.high[best])) best = i;
    if (best < 0) return null;
    const value = this.high[best];
    if (this.exact || !this.parts.has(best)) {
      return { value, start: best === 0 ? this.first : this.t[best - 1], end: this.t[best] };
    }
    const at = this.parts.get(best);
    for (let i = at; i < at + this.ticks(best); i++) {
      if (this.pv[i] === value) return { value, start: i > at ? this.pt[i - 1] : this.t[best - 1] ?? this.first, end: this.pt[i] };
    }
    return { value, start: best === 0 ? this.first : this.t[best - 1], end: this.t[best] };
  }
};
