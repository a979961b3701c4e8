// Deflated typed arrays become arrays of numbers. The other half is report/html/pyramid.py, which says how they are written.
"use strict";

const everywatt = {};

everywatt.inflate = async function (base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
};

// {deflate: base64} as the plain data that it was.
everywatt.unpackJson = async (packed) => JSON.parse(new TextDecoder().decode(await everywatt.inflate(packed.deflate)));

// {columns: [[name, type, n]…], deflate: base64} as {name: array}. Whole numbers are stored as differences.
everywatt.unpack = async function (packed) {
  const raw = await everywatt.inflate(packed.deflate);
  const types = { i4: Int32Array, f4: Float32Array, f8: Float64Array };
  const found = {};
  let at = 0;
  for (const [name, type, n] of packed.columns) {
    const end = at + n * types[type].BYTES_PER_ELEMENT;
    const values = new types[type](raw.slice(at, end));
    let sum = 0;
    found[name] = type === "f4" ? values : Float64Array.from(values, (step) => (sum += step));
    at = end;
  }
  return found;
};
