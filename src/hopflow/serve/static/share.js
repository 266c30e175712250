/** What is on the screen as a command, as Python, and as a page that plays by itself. */

const MODULES = ["text", "edit", "recording", "player", "tokens", "history", "panel", "playbar", "saved"];
/** The modules of a saved page, each after those that it imports. */

/** Put a text on the clipboard; returns whether the browser allowed it. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // without https, or without permission
  }
}

/** The commands, or the Python programs, of recordings. */
export function programs(recordings, kind) {
  return recordings.map((recording) => recording[kind].trimEnd()).join(kind === "python" ? "\n\n" : "\n");
}

/** A page without any request that plays recordings, as text. */
export async function savedPage(recordings, title) {
  const file = async (name) => (await fetch(`/static/${name}`)).text();
  const [style, template, ...modules] = await Promise.all([
    file("tokens.css"), Promise.resolve(document.querySelector("#panel").innerHTML),
    ...MODULES.map((name) => file(`${name}.js`)),
  ]);
  // one script: a page that was opened from a disk may not import modules
  const script = modules.join("\n").replace(/^import .*;$/gm, "").replace(/^export /gm, "");
  const data = JSON.stringify({ recordings: recordings.map((recording) => recording.saved()) }).replaceAll("<", "\\u003c");
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>${escaped(title)}</title>
<style>
${style}
</style>
</head>
<body>
<h1>${escaped(title)}</h1>
<main>
<div id="panels"></div>
<p id="difference" hidden></p>
<div id="playbar"></div>
</main>
<pre id="command"></pre>
<div id="history" role="tooltip" hidden></div>
<template id="panel">${template}</template>
<script type="application/json" id="data">${data}</script>
<script type="module">
${script}
</script>
</body>
</html>
`;
}

/** Let the browser save a text as a file. */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/html;charset=utf-8" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
