// Packed columns become arrays of numbers. The other half is report/html/packing.py, which says how they are written.
"use strict";

const everywatt = {};

everywatt.bytes = function (base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
};

everywatt.inflate = async function (bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
};

// One column: differences in zigzag code, one plane for each byte. Dividing by a whole number gives the nearest
// decimal, where multiplying by 0.001 would not.
everywatt.column = function (raw, at, n, width, step) {
  const values = new Float64Array(n);
  const inverse = Math.round(1 / step);
  const divides = step < 1 && Math.abs(inverse * step - 1) < 1e-12;
  let whole = 0;
  for (let i = 0; i < n; i++) {
    let zigzag = 0;
    for (let plane = width - 1; plane >= 0; plane--) zigzag = zigzag * 256 + raw[at + plane * n + i];
    whole += zigzag % 2 ? -(zigzag + 1) / 2 : zigzag / 2;
    values[i] = divides ? whole / inverse : whole * step;
  }
  return values;
};

// {columns: [[name, n, bytes a number, step, holes]…], deflate: base64} as {name: Float64Array}; holes are NaN.
everywatt.unpack = async function (packed) {
  const raw = await everywatt.inflate(everywatt.bytes(packed.deflate));
  const found = {};
  let at = 0;
  for (const [name, n, width, step, holes] of packed.columns) {
    const values = everywatt.column(raw, at, n, width, step);
    at += n * width;
    if (holes) {
      for (let i = 0; i < n; i++) if ((raw[at + (i >> 3)] >> (i & 7)) & 1) values[i] = NaN;
      at += Math.ceil(n / 8);
    }
    found[name] = values;
  }
  return found;
};
