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
  // about.origin_s: the instant from which its time is counted, 0 unless given.
  constructor(about, columns) {
    const seconds = (us) => us / 1e6 - (about.origin_s || 0);
    this.about = about;
    this.held = about.held;
    this.t = columns.t.map(seconds);
    this.exact = about.exact;
    if (this.exact) {
      this.low = this.high = this.mean = columns.v;
      this.first = this.t[0];
    } else {
      this.low = columns.low;
      this.high = columns.high;
      this.mean = columns.mean;
      this.first = seconds(about.first_us);
      this.parts = new Map();
      this.pt = columns.pt.map(seconds);
      this.pv = columns.pv;
      let at = 0;
      columns.parts.forEach((bucket, i) => { this.parts.set(bucket, [at, at + columns.pn[i]]); at += columns.pn[i]; });
    }
    this.sum = null;
  }

  static async of(about) {
    return new everywatt.Line(about, await everywatt.unpack(about.data));
  }

  // Where the stretch of tick or bucket i begins.
  start(i) { return i === 0 ? this.first : this.t[i - 1]; }

  // {t, low, high, mean, exact} between a and b, in about `most` points or fewer. The first point of a held line is where
  // its first stretch begins. What is no pixel wide at an edge is left out: it would only bend the line there.
  between(a, b, most) {
    const sliver = (b - a) / 4000;
    const from = Math.max(0, everywatt.place(this.t, a + sliver) - (this.held ? 0 : 1));
    const to = Math.min(this.t.length - 1, everywatt.place(this.t, b - sliver));
    const count = to - from + 1;
    const out = { t: [], low: [], high: [], mean: [], exact: this.exact && count <= most };
    if (count <= 0) return out;
    if (this.exact || count > most) this.grouped(out, from, to, Math.max(1, Math.ceil(count / most)));
    else this.opened(out, from, to, a, b, most);
    const first = this.start(from);
    if (this.held && first < out.t[0]) for (const [name, value] of [["t", first], ...["low", "high", "mean"].map((one) => [one, out[one][0]])]) out[name].unshift(value);
    return out;
  }

  // Buckets, with every tick of those that have them where these fit on the screen.
  opened(out, from, to, a, b, most) {
    let whole = 0;
    for (let i = from; i <= to; i++) if (this.parts.has(i)) whole += this.parts.get(i)[1] - this.parts.get(i)[0];
    out.exact = whole <= 4 * most;
    const open = out.exact;
    for (let i = from; i <= to; i++) {
      if (open && this.parts.has(i)) this.open(out, i);
      else {
        this.push(out, this.t[i], this.low[i], this.high[i], this.mean[i]);
        if (this.t[i] >= a && this.start(i) <= b) out.exact = false;
      }
    }
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
    const [from, to] = this.parts.get(bucket);
    for (let i = from; i < to; i++) this.push(out, this.pt[i], this.pv[i], this.pv[i], this.pv[i]);
  }

  // Groups of so many; a hole that is longer than a group stays a hole.
  grouped(out, from, to, size) {
    const long = (this.t[to] - this.start(from)) * size / (to - from + 1);
    const hole = (i) => Number.isNaN(this.mean[i]) && this.t[i] - this.start(i) > long;
    for (let start = from, end; start <= to; start = end + 1) {
      end = start;
      if (!hole(start)) while (end < Math.min(to, start + size - 1) && !hole(end + 1)) end++;
      if (start === end) this.push(out, this.t[start], this.low[start], this.high[start], this.mean[start]);
      else this.merged(out, start, end);
    }
  }

  merged(out, start, end) {
    let low = Infinity, high = -Infinity, area = 0, length = 0;
    for (let i = start; i <= end; i++) {
      if (Number.isNaN(this.mean[i])) continue;
      const dt = this.held ? this.t[i] - this.start(i) : 1;
      if (this.low[i] < low) low = this.low[i];
      if (this.high[i] > high) high = this.high[i];
      area += this.mean[i] * dt;
      length += dt;
    }
    this.push(out, this.t[end], low, high, high === -Infinity ? NaN : length > 0 ? area / length : (low + high) / 2);
  }

  // What it adds up to (value × seconds) between a and b, from ticks and means, without an interval.
  integral(a, b) { return this.upTo(b)[0] - this.upTo(a)[0]; }

  // Its mean over the time between a and b in which it was read; null where it was not.
  meanOf(a, b) {
    const seconds = this.upTo(b)[1] - this.upTo(a)[1];
    return seconds > 1e-9 ? this.integral(a, b) / seconds : null;
  }

  // [value × seconds, seconds that have a value] up to x.
  upTo(x) {
    if (this.sum === null) {
      let area = 0, seconds = 0;
      this.sum = [[0, 0]];
      for (let i = 0; i < this.t.length; i++) {
        const [more, longer] = this.within(i, this.t[i]);
        this.sum.push([area += more, seconds += longer]);
      }
    }
    const i = everywatt.place(this.t, x), [area, seconds] = this.sum[i];
    if (i >= this.t.length || x <= this.start(i)) return [area, seconds];
    const [more, longer] = this.within(i, x);
    return [area + more, seconds + longer];
  }

  // The same inside of tick or bucket i alone.
  within(i, x) {
    const open = !this.exact && this.parts.has(i);
    const [first, last] = open ? this.parts.get(i) : [i, i + 1];
    const [t, values] = open ? [this.pt, this.pv] : [this.t, this.mean];
    let area = 0, seconds = 0, from = this.start(i);
    for (let k = first; k < last && from < x; k++) {
      if (!Number.isNaN(values[k])) {
        area += values[k] * (Math.min(t[k], x) - from);
        seconds += Math.min(t[k], x) - from;
      }
      from = t[k];
    }
    return [area, seconds];
  }

  // {value, start, end} of the highest tick; of its bucket where its ticks are not there.
  peak() {
    let best = -1;
    for (let i = 0; i < this.high.length; i++) if (this.high[i] > (best < 0 ? -Infinity : this.high[best])) best = i;
    if (best < 0) return null;
    const value = this.high[best];
    const [from, to] = this.exact || !this.parts.has(best) ? [0, 0] : this.parts.get(best);
    for (let i = from; i < to; i++) if (this.pv[i] === value) return { value, start: i > from ? this.pt[i - 1] : this.start(best), end: this.pt[i] };
    return { value, start: this.start(best), end: this.t[best] };
  }
};
