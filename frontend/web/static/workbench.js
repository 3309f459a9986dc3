// The Workbench: makes the body of a completions request from the form, runs it, and draws what comes back.
// What the form says is what is sent, letter for letter, and what "Show code" shows.
const bench = document.getElementById("bench");
const settings = JSON.parse(bench.dataset.settings);
const ask = document.getElementById("ask");
const token = ask.elements.form_token.value;
const byId = (id) => document.getElementById(id);
const OPENAI = new Set(["model", "prompt", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
  "presence_penalty", "seed", "stop", "temperature", "top_p", "user"]);
const MINUS_INFINITY = -9999;
let running = null;

// From the form to a body

function readField(field) {
  const kind = field.dataset.kind;
  if (kind === "flag") return String(field.checked) === field.dataset.default ? undefined : field.checked;
  const text = field.value;
  if (kind === "text") return text === "" ? undefined : text;
  if (text.trim() === "") return undefined;
  if (kind === "lines") return text.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
  if (kind === "ids") return text.split(",").map((item) => number(item));
  if (kind === "map") { try { return JSON.parse(text); } catch { return text; } }
  return number(text);
}

// What is no number is sent as it is: the API says best what is wrong with it. A seed may have 63 bits, and JavaScript's
// own numbers would change its last digits.
function number(text) {
  const written = text.trim();
  if (/^-?\d+$/.test(written)) return Number.isSafeInteger(Number(written)) ? Number(written) : BigInt(written);
  if (!/^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(written)) return written;
  const value = Number(written);
  // JSON has no Infinity: it would write null, which means "left out". And what is not 0 must not become it.
  const kept = Number.isFinite(value) && (value !== 0 || !/[1-9]/.test(written.split(/e/i)[0]));
  return kept ? value : written;
}

function json(value) {
  if (typeof value === "bigint") return String(value);
  if (Array.isArray(value)) return `[${value.map(json).join(",")}]`;
  if (typeof value !== "object" || value === null) return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}:${json(item)}`).join(",")}}`;
}

function body() {
  const made = { model: ask.elements.model.value, prompt: ask.elements.prompt.value };
  for (const field of ask.querySelectorAll("[data-kind]")) {
    const value = readField(field);
    if (value !== undefined) made[field.name] = value;
  }
  return made;
}

function fill(request) {
  ask.elements.model.value = request.model;
  ask.elements.prompt.value = request.prompt;
  for (const field of ask.querySelectorAll("[data-kind]")) {
    const value = request[field.name];
    const kind = field.dataset.kind;
    if (kind === "flag") field.checked = value ?? field.dataset.default === "true";
    else if (value === undefined) field.value = "";
    else if (kind === "lines") field.value = [value].flat().map((line) => line.replaceAll("\n", "\\n")).join("\n");
    else if (kind === "map") field.value = JSON.stringify(value);
    else field.value = [value].flat().join(", ");
    if (value !== undefined) field.closest("details").open = true;
  }
}

// Running

async function post(path, request, signal) {
  const answer = await fetch(path, { method: "POST", signal, body: json(request),
    headers: { "Content-Type": "application/json", "X-Form-Token": token } });
  const left = answer.headers.get("x-ratelimit-remaining-tokens");
  if (left) byId("available").textContent = Number(left).toLocaleString("en");
  if (!answer.ok || answer.redirected) {
    const problem = await answer.json().catch(() => null);
    throw new Error(problem?.error.message ?? "You are not signed in any more, or this page is too old: reload it.");
  }
  return answer;
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The answer broke off.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      yield JSON.parse(part.slice(6));
    }
  }
}

async function run() {
  const request = body();
  const began = performance.now();
  const choices = new Map();
  byId("choices").replaceChildren();
  byId("prompt-tokens").replaceChildren(empty("No log probabilities of the prompt were asked for."));
  running = new AbortController();
  working(true, "Waiting for the first token…");
  try {
    // These change how the answer comes, and not what is in it.
    const form = { stream: true, stream_options: { include_usage: true }, return_token_ids: true };
    const answer = await post("/workbench/completions", { ...request, ...form }, running.signal);
    for await (const event of events(answer)) {
      if (event.error) throw new Error(event.error.message);
      for (const piece of event.choices) drawPiece(choices, piece);
      if (event.usage) {
        const seconds = ((performance.now() - began) / 1000).toFixed(1);
        say(`${event.usage.prompt_tokens} prompt and ${event.usage.completion_tokens} completion tokens in ${seconds} s.`);
      } else if (byId("status").textContent.startsWith("Waiting")) say("Running…");
    }
  } catch (error) {
    if (error.name === "AbortError") say("Stopped. What was produced until then is charged.");
    else complain(error.message);
  }
  working(false);
}

function working(is, words) {
  byId("go").disabled = is;
  byId("halt").hidden = !is;
  byId("trouble").hidden = true;
  if (words) say(words);
  if (!is) running = null;
}

function say(words) { byId("status").textContent = words; }

function complain(words) {
  say("");
  byId("trouble").textContent = words;
  queueMicrotask(() => { byId("trouble").hidden = false; });
}

// Drawing

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "p") made.style.setProperty("--p", value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function empty(words) { return element("p", { class: "empty" }, words); }

function shown(text) { return text === "" ? "∅" : text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥"); }

function drawToken(text, logprob, alternatives, place) {
  const drawn = element("span", { class: "tok", tabindex: place ? -1 : 0 }, shown(text));
  if (logprob !== null) {
    drawn.style.setProperty("--p", Math.exp(logprob).toFixed(4));
    drawn.alternatives = alternatives;
    drawn.logprob = logprob;
    drawn.word = text;
  }
  return drawn;
}

function drawPiece(choices, piece) {
  let choice = choices.get(piece.index);
  if (!choice) {
    const words = element("div", { class: "tokens" });
    const about = element("span");
    const box = element("article", { class: "choice" },
      element("h3", {}, element("span", {}, `Continuation ${piece.index + 1}`), about), words);
    const after = [...byId("choices").children].find((other) => Number(other.dataset.index) > piece.index);
    box.dataset.index = piece.index;
    byId("choices").insertBefore(box, after ?? null);
    choice = { words, about, tokens: 0 };
    choices.set(piece.index, choice);
    if (piece.prompt_logprobs) drawPrompt(piece.prompt_logprobs, piece.prompt_token_ids);
  }
  if (piece.logprobs) {
    piece.logprobs.tokens.forEach((text, place) => {
      const others = Object.entries(piece.logprobs.top_logprobs[place] ?? {});
      choice.words.append(drawToken(text, piece.logprobs.token_logprobs[place], others, choice.tokens));
      choice.tokens += 1;
    });
  } else choice.words.append(piece.text);
  if (piece.finish_reason) choice.about.textContent = piece.stop_reason === null || piece.stop_reason === undefined
    ? piece.finish_reason : `${piece.finish_reason}: ${JSON.stringify(piece.stop_reason)}`;
}

function drawPrompt(positions, ids) {
  const drawn = positions.map((entries, place) => {
    if (entries === null) return element("span", { class: "given", title: "Nothing stands before the first token." }, "▏");
    const own = entries[ids[place]];
    const others = Object.values(entries).map((entry) => [entry.decoded_token, entry.logprob]);
    return drawToken(own.decoded_token, own.logprob, others, place);
  });
  byId("prompt-tokens").replaceChildren(...drawn);
}

// The alternatives at a token

const tip = byId("tip");
function showTip(at) {
  if (!at?.alternatives) { tip.hidden = true; return; }
  const rows = at.alternatives.toSorted((one, other) => other[1] - one[1]).slice(0, 12).map(([text, logprob]) =>
    element("tr", text === at.word ? { class: "here" } : {}, element("td", {}, JSON.stringify(text)),
      element("td", {}, logprob <= MINUS_INFINITY ? "−∞" : logprob.toFixed(3)),
      element("td", {}, percent(Math.exp(logprob)))));
  tip.replaceChildren(element("table", {}, element("tbody", {}, ...rows)));
  tip.hidden = false;
  const box = at.getClientRects()[0] ?? at.getBoundingClientRect();
  const left = Math.min(box.left, innerWidth - tip.offsetWidth - 12);
  const below = box.bottom + 8 + tip.offsetHeight < innerHeight;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${below ? box.bottom + 8 : box.top - tip.offsetHeight - 8}px`;
}

function percent(chance) { return chance < 0.0001 ? "<0.01 %" : `${(chance * 100).toFixed(2)} %`; }

document.addEventListener("mouseover", (event) => showTip(event.target.closest?.(".tok")));
document.addEventListener("focusin", (event) => showTip(event.target.closest?.(".tok")));
document.addEventListener("keydown", (event) => {
  const here = document.activeElement;
  if (event.key === "Escape") tip.hidden = true;
  if (!here?.classList.contains("tok")) return;
  const next = { ArrowRight: here.nextElementSibling, ArrowLeft: here.previousElementSibling }[event.key];
  if (next?.classList.contains("tok")) { next.focus(); event.preventDefault(); }
});

// Layers

function drawLayers() {
  const model = settings.models[ask.elements.model.value];
  const known = model.capture === "all" ? ["embedding", ...Array(model.layers).keys(), "final_norm"] : model.capture;
  byId("layers").replaceChildren(...known.map((layer) => element("label", {},
    element("input", { type: "checkbox", value: layer, "aria-label": `Layer ${layer}` }), element("span", {}, String(layer)))));
  pick("some");
}

function pick(which) {
  const boxes = [...byId("layers").querySelectorAll("input")];
  const numbered = boxes.filter((box) => /^\d+$/.test(box.value));
  const step = Math.max(Math.ceil(numbered.length / 10), 1);
  for (const box of boxes) box.checked = which === "all" && numbered.includes(box);
  if (which === "some") numbered.forEach((box, place) => {
    box.checked = (numbered.length - 1 - place) % step === 0;
  });
}

async function look() {
  const chosen = [...byId("layers").querySelectorAll(":checked")].map((box) =>
    /^\d+$/.test(box.value) ? Number(box.value) : box.value);
  const { model, prompt, add_special_tokens } = body();
  const request = { model, prompt, layers: chosen, ...(add_special_tokens === undefined ? {} : { add_special_tokens }) };
  byId("look").disabled = true;
  byId("trouble").hidden = true;
  say("Looking…");
  try {
    drawLens(await (await post("/workbench/lens", request)).json());
    say("");
  } catch (error) { complain(error.message); }
  byId("look").disabled = false;
}

function drawLens(found) {
  const head = () => element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Layer"),
    ...found.tokens.map((text) => element("th", { scope: "col" }, shown(text).trimEnd() || JSON.stringify(text)))));
  const rows = (cell) => element("tbody", {}, ...found.layers.map((layer, row) => element("tr", {},
    element("th", { scope: "row" }, String(layer)), ...found.tokens.map((_, column) => cell(row, column)))).toReversed());
  const logs = found.norms.flat().map(Math.log);
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const norms = rows((row, column) => {
    const norm = found.norms[row][column];
    const share = high > low ? (Math.log(norm) - low) / (high - low) : 0;
    return element("td", { class: "norm", p: share.toFixed(3) }, norm >= 100 ? norm.toFixed(0) : norm.toPrecision(3));
  });
  const lens = rows((row, column) => {
    const best = found.lens[row][column];
    const drawn = element("td", { class: "tok", tabindex: -1, p: best[0][1] }, shown(best[0][0]));
    drawn.alternatives = best.map(([text, chance]) => [text, Math.log(chance)]);
    return drawn;
  });
  const table = (caption, filled) => element("div", { class: "grid-table", tabindex: 0 },
    element("table", {}, element("caption", {}, caption), head(), filled));
  byId("lens").replaceChildren(table("Length of the residual stream", norms),
    table("Logit lens: the likeliest next token, if this Layer were the last", lens));
}

// Code

function python(value) {
  if (typeof value === "bigint") return String(value);
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (Array.isArray(value)) return `[${value.map((item) => python(item)).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${python(item)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

function showCode() {
  const request = body();
  const ours = Object.fromEntries(Object.entries(request).filter(([name]) => !OPENAI.has(name)));
  const lines = Object.entries(request).filter(([name]) => OPENAI.has(name)).map(([name, value]) => `    ${name}=${python(value)},`);
  if (Object.keys(ours).length) lines.push(`    extra_body=${python(ours)},`);
  byId("code-python").textContent = `from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(`${settings.base}/v1`)})
completion = client.completions.create(
${lines.join("\n")}
)
for choice in completion.choices:
    print(choice.text)`;
  const quoted = json(request).replaceAll("'", "'\\''");
  byId("code-curl").textContent = `curl -s ${settings.base}/v1/completions \\
  -H "Authorization: Bearer $OPENAI_API_KEY" -H "Content-Type: application/json" \\
  -d '${quoted}'`;
}

// Tabs, as ARIA's practices describe them

const tabs = [...document.querySelectorAll("[role=tab]")];
function choose(tab, focus = false) {
  for (const one of tabs) {
    one.setAttribute("aria-selected", String(one === tab));
    one.tabIndex = one === tab ? 0 : -1;
    byId(one.getAttribute("aria-controls")).hidden = one !== tab;
  }
  if (tab.id === "tab-code") showCode();
  if (focus) tab.focus();
}
for (const tab of tabs) {
  tab.addEventListener("click", () => choose(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) choose(tabs[(tabs.indexOf(tab) + step + tabs.length) % tabs.length], true);
  });
}

ask.addEventListener("submit", (event) => { event.preventDefault(); if (!running) run(); });
ask.addEventListener("input", () => { if (!byId("pane-code").hidden) showCode(); });
ask.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); ask.requestSubmit(); }
});
ask.elements.model.addEventListener("change", drawLayers);
byId("halt").addEventListener("click", () => running?.abort());
byId("look").addEventListener("click", look);
for (const button of document.querySelectorAll("[data-pick]")) button.addEventListener("click", () => pick(button.dataset.pick));
byId("save").addEventListener("submit", () => { byId("save").elements.body.value = json(body()); });
if (settings.request) fill(settings.request);
drawLayers();
