// Shared by the pages' scripts, which follow in the same module.

const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);

// A library of the page: gzip in base64, a module once unpacked.
async function load(id) {
  const packed = Uint8Array.from(atob(read(id)), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const url = URL.createObjectURL(new Blob([await new Response(unpacked).text()], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}
