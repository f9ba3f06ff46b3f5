// The page's own script: it shows one listener at a time, and draws the listener's picture.

const pictures = read("pictures");
const dark = matchMedia("(prefers-color-scheme: dark)");

async function show() {
  const chosen = byId("listener").value;
  for (const section of document.querySelectorAll("main > section")) section.hidden = section.dataset.listener !== chosen;
  const ink = getComputedStyle(document.documentElement).getPropertyValue("--ink").trim();
  for (const figure of document.querySelectorAll("main > section:not([hidden]) figure")) {
    const picture = pictures[figure.dataset.picture];
    if (!picture) continue;
    const { title, ...spec } = picture;
    const place = figure.querySelector("div");
    figure.querySelector("figcaption").textContent = title.text.join("; ");
    spec.width = Math.min(spec.width, place.clientWidth - 4);
    spec.autosize = { type: "fit", contains: "padding" };
    // `ast`: expressions are interpreted, so the page's policy can refuse eval
    await window.vegaEmbed(place, spec, {
      actions: false,
      renderer: "svg",
      ast: true,
      tooltip: { theme: dark.matches ? "dark" : "light" },
      config: { background: "transparent", axis: { labelColor: ink, titleColor: ink } },
    });
  }
}

await load("vega"); // defines window.vegaEmbed
byId("choice").hidden = false;
byId("choice").addEventListener("submit", (event) => event.preventDefault());
byId("listener").addEventListener("change", show);
dark.addEventListener("change", show);
await show();
document.documentElement.dataset.ready = "";
