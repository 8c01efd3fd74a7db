"use strict";
(async () => {
  const root = document.getElementById("samples");
  const get = (name) => root.querySelector(`[data-part="${name}"]`);
  const make = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const status = get("status");
  if (typeof DecompressionStream === "undefined") {
    status.textContent = "This browser is too old for the sample browser: it cannot decompress the data.";
    return;
  }
  const head = JSON.parse(get("head").content.textContent);
  const raw = Uint8Array.from(atob(get("data").content.textContent.trim()), (c) => c.charCodeAt(0));
  const bytes = await new Response(new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
  let at = 0;
  const ints = (n) => { const a = new Int32Array(bytes, at, n); at += 4 * n; return a; };
  const N = head.samples;
  const [step, sample, promptA, promptB, lenA, lenB, endA, endB, tokenAt, logprobAt, promptPartsAt] = Array.from({ length: 11 }, () => ints(N));
  const promptLength = ints(head.prompts), promptIds = ints(head.prompt_tokens), ids = ints(head.tokens);
  const half = new Uint16Array(bytes, at, head.tokens);
  const decode = (h) => {
    const s = h & 0x8000 ? -1 : 1, e = (h >> 10) & 31, m = h & 1023;
    if (e === 31) return m ? NaN : s * Infinity;
    return s * (e ? 2 ** (e - 25) * (1024 + m) : 2 ** -24 * m);
  };
  const promptAt = new Int32Array(head.prompts + 1);
  promptLength.forEach((n, i) => { promptAt[i + 1] = promptAt[i] + n; });
  const start = new Int32Array(N), most = new Float64Array(N), firstAt = new Int32Array(N), reasonsDiffer = new Uint8Array(N), differs = new Uint8Array(N);
  const T = head.tolerance, FIRST = head.first || {};
  const verdictsFirst = (i) => step[i] === FIRST.step && sample[i] === FIRST.sample;
  const firstInPrompt = (i) => verdictsFirst(i) && FIRST.part === "prompt";
  for (let i = 0, p = 0; i < N; i++) {
    start[i] = p;
    const a = Math.max(0, lenA[i]), b = Math.max(0, lenB[i]), both = Math.min(a, b);
    for (let t = 0; t < both; t++) {
      const d = ids[p + a + t] !== 0 ? 0 : Math.abs(decode(half[p + a + t])) / head.scale;
      if (d > most[i]) most[i] = d;
    }
    // The position that is marked: the verdict's where this is its sample, and none where that is in the prompt; else
    // the first other token, before any difference of numbers.
    const reasons = head.finish[endA[i]] && head.finish[endB[i]] && endA[i] !== endB[i];
    reasonsDiffer[i] = reasons && tokenAt[i] < 0 ? 1 : 0;
    const own = tokenAt[i] >= 0 ? tokenAt[i] : logprobAt[i] >= 0 ? logprobAt[i] : reasonsDiffer[i] ? a - 1 : -1;
    firstAt[i] = firstInPrompt(i) ? -1 : verdictsFirst(i) && FIRST.position >= 0 ? FIRST.position : own;
    differs[i] = own >= 0 || promptPartsAt[i] >= 0 || verdictsFirst(i) ? 1 : 0;
    p += a + b;
  }
  const count = (n) => n.toLocaleString("en-US");
  const number = (x) => Number.isFinite(x) ? (Math.abs(x) < 1e-3 && x ? x.toExponential(1) : x.toPrecision(3)) : String(x);
  const token = (i, t) => {
    const a = Math.max(0, lenA[i]), b = Math.max(0, lenB[i]), p = start[i];
    const hasA = t < a, hasB = t < b, one = hasA ? ids[p + t] : null;
    const two = hasB ? ids[p + a + t] + (hasA ? one : 0) : null, same = hasA && hasB && one === two;
    const lpA = hasA ? decode(half[p + t]) : null, v = hasB ? decode(half[p + a + t]) : null;
    const delta = same ? v / head.scale : null;
    return { one, two, same, lpA, lpB: hasB ? (same ? lpA + delta : v) : null, delta };
  };
  const level = (x) => !x.same ? "flip" : !(Math.abs(x.delta) > T) ? "" : `l${Math.min(4, 1 + Math.floor(Math.log10(Math.abs(x.delta) / T)))}`;

  // the list: only the rows in sight exist
  const list = get("list");
  let ROW = 28;
  const inner = make("div", "rows");
  list.append(inner);
  let shown = [], chosen = -1;
  const describe = (i) => {
    const length = (n, end) => n < 0 ? "absent" : `${count(n)}${head.finish[end] ? ` ${head.finish[end]}` : ""}`;
    const what = [];
    if (promptPartsAt[i] >= 0) what.push(`another prompt from position ${promptPartsAt[i]}`);
    if (lenA[i] < 0 || lenB[i] < 0) what.push("recorded in one run only");
    else if (tokenAt[i] >= 0) what.push(`${tokenAt[i] < Math.min(lenA[i], lenB[i]) ? "another token" : "one side ends"} at position ${tokenAt[i]}`);
    if (logprobAt[i] >= 0) what.push(`log-probability differs from position ${logprobAt[i]}`);
    if (reasonsDiffer[i]) what.push("another finish reason");
    return [`step ${step[i]}`, `sample ${sample[i]}`, `${length(lenA[i], endA[i])} / ${length(lenB[i], endB[i])}`, what.join("; ") || `max |Δ| ${number(most[i])}`];
  };
  const rowOf = (i) => {
    const row = make("div", `row${differs[i] ? " differs" : ""}`);
    for (const text of describe(i)) row.append(make("span", "", text));
    const place = FIRST.position < 0 ? FIRST.field : `${firstInPrompt(i) ? "prompt " : ""}position ${FIRST.position}`;
    if (verdictsFirst(i)) row.append(make("b", "", `first divergence: ${place}`));
    return row;
  };
  // All rows are as high as the highest needs to be: the one with the longest text, or the verdict's own.
  let longest = 0, mostLetters = 0, verdicts = 0;
  for (let i = 0; i < N; i++) {
    const letters = describe(i).join(" ").length;
    if (letters > mostLetters) [longest, mostLetters] = [i, letters];
    if (verdictsFirst(i)) verdicts = i;
  }
  const measure = () => {
    const rows = [...new Set([longest, verdicts])].map(rowOf);
    inner.replaceChildren(...rows);
    ROW = Math.max(...rows.map((row) => row.offsetHeight));
  };
  const draw = () => {
    inner.style.height = `${shown.length * ROW}px`;
    const from = Math.max(0, Math.floor(list.scrollTop / ROW) - 4), to = Math.min(shown.length, from + Math.ceil(list.clientHeight / ROW) + 8);
    const rows = [];
    for (let r = from; r < to; r++) {
      const row = rowOf(shown[r]);
      row.id = `row-${r}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(r === chosen));
      row.setAttribute("aria-posinset", String(r + 1));
      row.setAttribute("aria-setsize", String(shown.length));
      row.style.top = `${r * ROW}px`;
      row.style.height = `${ROW}px`;
      row.addEventListener("click", () => choose(r));
      rows.push(row);
    }
    inner.replaceChildren(...rows);
    list.setAttribute("aria-activedescendant", chosen >= 0 ? `row-${chosen}` : "");
  };
  const choose = (r) => {
    if (!shown.length) { get("detail").replaceChildren(); return; }
    chosen = Math.max(0, Math.min(shown.length - 1, r));
    if (chosen * ROW < list.scrollTop) list.scrollTop = chosen * ROW;
    if ((chosen + 1) * ROW > list.scrollTop + list.clientHeight) list.scrollTop = (chosen + 1) * ROW - list.clientHeight;
    draw();
    detail(shown[chosen]);
  };
  list.addEventListener("scroll", draw, { passive: true });
  list.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(list.clientHeight / ROW) - 1);
    const to = { ArrowDown: chosen + 1, ArrowUp: chosen - 1, PageDown: chosen + page, PageUp: chosen - page, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(to);
  });

  // one sample: pairs of tokens, a window of positions at a time
  const WINDOW = 256, AROUND = 16;
  const detail = (i, from) => {
    const length = Math.max(lenA[i], lenB[i], 0), box = get("detail");
    const begin = from ?? Math.max(0, Math.floor(Math.max(0, firstAt[i]) / WINDOW) * WINDOW);
    const end = Math.min(length, begin + WINDOW);
    const title = make("h3", "", `Step ${step[i]}, sample ${sample[i]}`);
    title.append(make("small", "", `positions ${begin} to ${Math.max(begin, end - 1)} of ${count(length)}`));
    const ask = make("details"), parts = promptPartsAt[i];
    const at = parts >= 0 ? parts : firstInPrompt(i) ? FIRST.position : -1;
    const idsOf = (p) => Array.from(promptIds.subarray(promptAt[p], promptAt[p + 1]), String);
    const marked = (seen, from, to) => {
      const text = make("code"), words = (x, y) => seen.slice(Math.max(0, x), Math.max(0, y)).join(" ");
      if (at < 0 || at >= seen.length) text.textContent = words(from, to) || "not recorded";
      else text.append(words(from, at), " ", make("span", "first", seen[at]), " ", words(at + 1, to));
      if (from > 0) text.prepend("… ");
      if (to < seen.length) text.append(" …");
      return text;
    };
    const told = parts >= 0 ? `; the candidate's differs from position ${parts}` : at >= 0 ? `; first divergence at position ${at}` : "";
    const baselines = idsOf(promptA[i]);
    ask.append(make("summary", "", `prompt: ${count(baselines.length)} ids${told}`));
    if (parts >= 0) {
      for (const [side, seen] of [[head.sides[0], baselines], [head.sides[1], idsOf(promptB[i])]]) {
        const line = make("p", "", `${side}, around position ${parts} of ${count(seen.length)}: `);
        line.append(marked(seen, Math.max(0, parts - AROUND), Math.min(seen.length, parts + AROUND)));
        ask.append(line);
      }
    } else ask.append(marked(baselines, 0, baselines.length));
    ask.open = at >= 0;
    const line = make("p", "muted said", "");
    line.setAttribute("aria-live", "polite");
    const pairs = make("div", "pairs");
    pairs.setAttribute("role", "group");
    pairs.setAttribute("aria-label", `${head.sides[0]} above, ${head.sides[1]} below; arrow keys move`);
    const tell = (t) => {
      const x = token(i, t), side = (id, lp) => id === null ? "nothing" : `${id} (${number(lp)})`;
      line.textContent = `position ${t}: ${head.sides[0]} ${side(x.one, x.lpA)}, ${head.sides[1]} ${side(x.two, x.lpB)}` + (x.same ? `, Δ ${number(x.delta)} nats` : ", another token");
    };
    for (let t = begin; t < end; t++) {
      const x = token(i, t), pair = make("span", `pair ${level(x)}`);
      if (t === firstAt[i]) pair.classList.add("first");
      pair.tabIndex = t === (firstAt[i] >= begin && firstAt[i] < end ? firstAt[i] : begin) ? 0 : -1;
      pair.append(make("span", "", x.one === null ? "–" : String(x.one)), make("span", "", x.two === null ? "–" : String(x.two)));
      pair.addEventListener("focus", () => tell(t));
      pair.addEventListener("mouseenter", () => tell(t));
      pairs.append(pair);
    }
    pairs.addEventListener("keydown", (event) => {
      const here = document.activeElement, to = { ArrowRight: here.nextElementSibling, ArrowLeft: here.previousElementSibling }[event.key];
      if (to) { event.preventDefault(); here.tabIndex = -1; to.tabIndex = 0; to.focus(); }
    });
    const steps = make("p", "pages");
    for (const [text, go, on] of [["earlier", begin - WINDOW, begin > 0], ["later", begin + WINDOW, end < length]]) {
      const button = make("button", "", text);
      button.disabled = !on;
      button.addEventListener("click", () => detail(i, go));
      if (length > WINDOW) steps.append(button);
    }
    const sides = make("p", "muted", `above ${head.sides[0]}, below ${head.sides[1]}`);
    box.replaceChildren(title, ask, sides, pairs, line, steps);
    if (length) tell(firstAt[i] >= begin && firstAt[i] < end ? firstAt[i] : begin);
  };

  // filters
  const steps = get("step"), text = get("sample"), differing = get("differing");
  for (const n of [...new Set(step)].sort((x, y) => x - y)) steps.append(new Option(`step ${n}`, String(n)));
  const filter = () => {
    const s = steps.value, q = text.value.trim();
    shown = [];
    for (let i = 0; i < N; i++) {
      if (s !== "" && step[i] !== Number(s)) continue;
      if (q !== "" && !String(sample[i]).startsWith(q)) continue;
      if (differing.checked && !differs[i]) continue;
      shown.push(i);
    }
    status.textContent = `${count(shown.length)} of ${count(N)} samples`;
    list.scrollTop = 0;
    chosen = -1;
    draw();
    const first = shown.findIndex(verdictsFirst), other = shown.findIndex((i) => differs[i]);
    choose(first >= 0 ? first : Math.max(0, other));
  };
  for (const control of [steps, text, differing]) control.addEventListener("input", filter);
  get("body").hidden = false;
  measure();
  new ResizeObserver(() => { measure(); draw(); }).observe(list);
  filter();
})();
