// Follow a run: new curves are drawn as they come; a new stage brings a new page.
"use strict";

// In a server's page alone: a file has nobody to ask.
async function askEpisode(number) {
  return (await fetch(`episode?number=${number}`)).json();
}

async function askText(words) {
  return (await (await fetch(`search?text=${encodeURIComponent(words)}`)).json()).numbers ?? [];
}

if (document.body.dataset.live) {
  const status = document.getElementById("live");
  let stages = null;
  const source = new EventSource("events");
  source.onmessage = async (event) => {
    const now = JSON.parse(event.data);
    if (stages !== null && now.stages !== stages) return location.reload();
    if (stages !== null) {
      drawCurves(await (await fetch("data")).json());
      addDownloads();
    }
    stages = now.stages;
    status.textContent = now.said;
  };
  source.onerror = () => { status.textContent = "the page lost its server; it will try again"; };
}
