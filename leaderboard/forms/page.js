// The page's own script: it sorts and filters the table, enlarges reconstructions and draws the charts.
// Text of records only ever becomes textContent, a value of an option, or data of a chart.

const make = (name, properties = {}, ...inside) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...inside);
  return made;
};
const shared = read("data");

// --- the table

// Numbers by size, whatever is beside them in the cell; a cell without one comes last in both directions.
const compare = (sign) => (a, b) => {
  if (a === "" || b === "") return (a === "") - (b === "");
  return sign * (Number(a) - Number(b));
};

async function startTable() {
  const { default: DataTable } = await load("datatables");
  DataTable.ext.errMode = "throw";
  DataTable.type("figure", { detect: () => false, order: { asc: compare(1), desc: compare(-1) } });
  const headers = [...document.querySelectorAll("#rows thead tr:last-child th")];
  const table = new DataTable("#rows", {
    autoWidth: false,
    order: [],
    orderDescReverse: false,
    pageLength: shared.pageRows,
    paging: document.querySelectorAll("#rows tbody > tr").length > shared.pageRows,
    lengthMenu: [shared.pageRows, 100, { label: "all", value: -1 }],
    layout: { topStart: "info", topEnd: null, bottomStart: "pageLength", bottomEnd: "paging" },
    columns: headers.map((header) => ({
      type: header.dataset.kind === "num" ? "figure" : "html",
      orderable: header.dataset.kind !== "unsortable",
      searchable: header.dataset.kind === "text",
    })),
    language: {
      info: "_START_–_END_ of _TOTAL_ rows",
      infoEmpty: "No row fits these filters",
      infoFiltered: "(of _MAX_)",
      zeroRecords: "No row fits these filters.",
      lengthMenu: "_MENU_ rows a page",
    },
  });
  moveScrolling();
  const filters = byId("filters");
  const chosen = (id) => byId(id).value.slice(1); // "" for all, "=" before a name
  table.search.fixed("controls", (_text, _data, index) => {
    const { dataset } = table.row(index).node();
    return (
      (!byId("dataset").value || dataset.dataset === chosen("dataset")) &&
      (!byId("flag").value || JSON.parse(dataset.flags).includes(chosen("flag"))) &&
      (!byId("pareto").checked || "pareto" in dataset) &&
      (!byId("complete").checked || "complete" in dataset)
    );
  });
  const redraw = () => table.search(byId("search").value).draw();
  filters.addEventListener("input", redraw);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.hidden = false;
  document.querySelector("#board .dt-info")?.setAttribute("role", "status");
  redraw(); // a reloaded page keeps what was typed
}

// Without this script the whole table scrolls in its box; with it, the line of counts above stays put.
function moveScrolling() {
  const [outer, inner] = [byId("scroll"), document.querySelector("#board .dt-layout-table")];
  for (const name of ["class", "tabindex", "role", "aria-label"]) {
    if (name === "class") inner.classList.add("scroll");
    else inner.setAttribute(name, outer.getAttribute(name));
    outer.removeAttribute(name);
  }
}

// --- reconstructions

function startThumbnails() {
  const dialog = byId("large");
  byId("board").addEventListener("click", (event) => {
    const small = event.target.closest("button.thumb")?.querySelector("img");
    if (!small) return;
    const large = dialog.querySelector("img");
    large.src = small.src;
    large.alt = small.alt;
    large.style.aspectRatio = `${small.getAttribute("width")} / ${small.getAttribute("height")}`;
    dialog.querySelector("figcaption").textContent = small.alt;
    dialog.showModal();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close()); // beside it
}

// --- charts

const dark = matchMedia("(prefers-color-scheme: dark)");
const MOST = 12; // defenses with a colour of their own
const COLOURS = {
  light: ["#0072b2", "#c44e00", "#007a5a", "#b03a86", "#8a6d00", "#5b4fc4"],
  dark: ["#5ab4f0", "#f58f4a", "#3ecf9e", "#ec86c0", "#e3c24d", "#a79bff"],
};
const RAMP = { light: ["#f7f2ee", "#f0a88f", "#a50f23"], dark: ["#2b2a2c", "#84413f", "#d2393f"] };
const WORST = "worst";
const views = [];
let drawing = 0;

const isRate = (rate) => typeof rate === "number";
const percent = (share) => `${(100 * share).toFixed(share % 1 && (share < 0.01 || share > 0.99) ? 1 : 0)} %`;
const theme = () => (dark.matches ? "dark" : "light");
const inkOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The condition's rows as the charts' data: at one point, each with its colour.
function rowsAt(condition, point) {
  const colours = COLOURS[theme()];
  const [ink, faint] = [inkOf("--ink"), inkOf("--faint")];
  let used = 0;
  return condition.rows.map((row) => {
    const at = row.at[point === WORST ? row.worst : point] ?? {};
    const plain = row.name === "none";
    const named = plain || used < MOST;
    const colour = plain ? ink : named ? colours[used % colours.length] : faint;
    const dash = !plain && named && used >= colours.length ? [6, 3] : [1, 0];
    used += plain ? 0 : 1;
    const rates = at.rates ?? []; // of each attack, or why it has none
    const range = at.low == null ? "" : `, 95 % interval ${percent(at.low)} to ${percent(at.high)}`;
    return {
      ...row, ...at, at: undefined, named, colour, dash,
      fill: row.complete ? colour : inkOf("--paper"),
      front: row.front.includes(point),
      state: row.complete ? "complete" : "incomplete",
      rateInWords: at.asr == null ? "" : `${at.bound ? "≥ " : ""}${percent(at.asr)}${range}, ${at.examples} examples`,
      attacks: (at.attacks ?? []).map((number) => shared.attacks[number]),
      rates: rates.map((rate) => (isRate(rate) ? rate : null)),
      marks: rates.map((rate) => (isRate(rate) ? (100 * rate).toFixed(0) : rate)),
      inks: rates.map((rate) => (!isRate(rate) ? inkOf("--quiet") : rate > 0.75 ? "#ffffff" : ink)),
      thresholds: shared.thresholds,
    };
  });
}

function config() {
  const [ink, quiet, line] = [inkOf("--ink"), inkOf("--quiet"), inkOf("--line")];
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: "transparent",
    font,
    view: { stroke: null },
    axis: {
      labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line,
      labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal",
    },
    axisY: { labelLimit: innerWidth < 640 ? 150 : 220 },
    axisBand: { grid: false, ticks: false, domain: false },
    rule: { color: quiet },
    line: { color: quiet },
    text: { color: ink, fontSize: 11 },
    range: { heatmap: RAMP[theme()], ramp: RAMP[theme()] },
  };
}

const has = (value) => (Array.isArray(value) ? value.length > 0 : value != null);

async function draw() {
  const mine = (drawing += 1);
  const condition = shared.conditions[Number(byId("condition").value)];
  const point = byId("point").value.slice(1) || WORST;
  const rows = rowsAt(condition, point);
  views.splice(0).forEach((view) => view.finalize());
  drawKey(rows);
  for (const chart of shared.charts) {
    const place = byId(`${chart.id}-chart`);
    const fit = rows.filter((row) => chart.needs.every((field) => has(row[field])));
    const shown = chart.most <= MOST ? fit.filter((row) => row.named) : fit.slice(0, chart.most);
    byId(`${chart.id}-note`).textContent =
      shown.length < fit.length ? ` Shown: ${shown.length} of ${fit.length}, the best ranked.` : "";
    if (!shown.length) {
      place.replaceChildren(make("p", { className: "nothing", textContent: chart.nothing }));
      continue;
    }
    const inner = make("div");
    place.replaceChildren(inner);
    const spec = { ...structuredClone(chart.spec), description: `${chart.heading}. ${chart.caption}` };
    spec.datasets = { ...spec.datasets, rows: shown };
    if (spec.height.step) spec.height = spec.height.step * shown.length;
    // `ast`: expressions are interpreted, so the page's policy can refuse eval
    const options = {
      actions: false, renderer: "svg", ast: true, config: config(), tooltip: { theme: theme() },
      logLevel: 1, // errors alone: a filter that leaves nothing is none
    };
    const { view } = await window.vegaEmbed(inner, spec, options);
    if (mine !== drawing) return view.finalize(); // the reader chose again meanwhile
    views.push(view);
  }
  return undefined;
}

function drawKey(rows) {
  const entries = rows.filter((row) => row.named).map((row) => {
    const swatch = make("span", { className: row.dash[1] ? "swatch dashed" : "swatch" });
    swatch.style.color = row.colour;
    const name = make("span", { className: "name", textContent: row.name });
    const button = make("button", { type: "button", title: row.name }, swatch, name);
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      byId("key").querySelectorAll("button").forEach((own) => own.setAttribute("aria-pressed", "false"));
      button.setAttribute("aria-pressed", String(on));
      views.forEach((view) => view.signal("focus", on ? row.name : "").runAsync());
    });
    return make("li", {}, button);
  });
  const left = rows.length - entries.length;
  if (left) entries.push(make("li", { textContent: `and ${left} more, ranked below, in grey` }));
  byId("key").replaceChildren(...entries);
}

let pointChosen = false; // until then the point at which defenses differ most is shown

function offerPoints() {
  const { points, telling } = shared.conditions[Number(byId("condition").value)];
  const before = pointChosen ? byId("point").value : `=${telling}`;
  const options = [["", "each defense’s worst"], ...points.map((point) => [`=${point}`, point])];
  byId("point").replaceChildren(...options.map(([value, textContent]) => make("option", { value, textContent })));
  if (options.some(([value]) => value === before)) byId("point").value = before;
}

async function startCharts() {
  await load("vega"); // leaves window.vegaEmbed behind
  byId("charts").hidden = false;
  offerPoints();
  byId("choice").addEventListener("submit", (event) => event.preventDefault());
  byId("condition").addEventListener("change", () => { offerPoints(); return draw(); });
  byId("point").addEventListener("change", () => { pointChosen = true; return draw(); });
  dark.addEventListener("change", draw);
  await draw();
}

startThumbnails();
await startTable();
await startCharts();
document.documentElement.dataset.ready = "";
