// Each chart as SVG or PNG, each table as CSV, and an explanation of each term on hover, tap or focus.
"use strict";

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-size", "font-weight", "font-family"];

function save(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const fileName = (text) => text.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "figure";

// The chart as a file of its own: what the style sheet gave it is written into it.
function drawing(chart) {
  const copy = chart.cloneNode(true);
  const originals = [chart, ...chart.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    for (const key of DRAWN) node.style.setProperty(key, style.getPropertyValue(key));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(svg("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  return new XMLSerializer().serializeToString(copy);
}

function savePng(name, chart) {
  const source = drawing(chart);
  const picture = new Image();
  picture.onload = () => {
    const canvas = html("canvas", { width: chart.clientWidth * 2, height: chart.clientHeight * 2 });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${name}.png`, blob));
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
}

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

function csv(table) {
  return [...table.rows].map((row) => [...row.cells].map((each) => {
    const small = each.querySelector("small")?.textContent ?? "";
    const text = each.textContent.slice(0, each.textContent.length - small.length).trim();
    return quoted(small ? `${text} (${small.trim()})` : text);
  }).join(",")).join("\n");
}

function addDownloads() {
  for (const caption of document.querySelectorAll("figure.panel > figcaption")) {
    if (caption.querySelector(".saves")) continue;
    const chart = () => caption.parentElement.querySelector(".stage svg");
    const name = fileName(caption.firstChild.textContent);
    const button = (label, onclick) => html("button", { type: "button", class: "save", "aria-label": `Save ${caption.firstChild.textContent} as ${label}`, onclick }, label);
    caption.append(html("span", { class: "saves" }, button("SVG", () => save(`${name}.svg`, new Blob([drawing(chart())], { type: "image/svg+xml" }))), button("PNG", () => savePng(name, chart()))));
  }
  for (const region of document.querySelectorAll(".scroll")) {
    const table = region.querySelector("table");
    if (!table || region.nextElementSibling?.classList.contains("save")) continue;
    const name = region.getAttribute("aria-label") ?? "table";
    region.after(html("button", { type: "button", class: "save", "aria-label": `Save ${name} as CSV`, onclick: () => save(`${fileName(name)}.csv`, new Blob([csv(table)], { type: "text/csv" })) }, "CSV"));
  }
}

// A heading whose text is a known term tells what it means.
function explainTerms(terms) {
  for (const node of document.querySelectorAll("main th, figcaption, .legend .entry, summary")) {
    const first = node.firstChild;
    const text = first?.nodeType === Node.TEXT_NODE ? first.textContent.trim() : "";
    const told = [text, text.toLowerCase()].filter((name) => Object.hasOwn(terms, name)).map((name) => terms[name])[0];
    if (!told) continue;
    first.replaceWith(html("span", { class: "term", tabindex: "0", title: told, "aria-label": `${text}: ${told}`, "data-told": told }, text));
  }
}
