// Elements, icons, and changing drawn HTML without losing what the reader selected or scrolled.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  plus: "M8 3v10M3 8h10",
  search: "M7 3a4 4 0 1 1 0 8 4 4 0 0 1 0-8zM10 10l3.2 3.2",
  menu: "M2.500 4.500h11M2.500 8h11M2.500 11.500h11",
  send: "M8 13V3.500M4 7.300l4-4 4 4",
  stop: "M5 5h6v6H5z",
  pencil: "M3 13l.6-2.900 7-7 2.300 2.300-7 7zM9.300 4.400l2.300 2.300",
  bin: "M3 4.500h10M6.300 4.500V3h3.400v1.500M4.500 4.500l.6 8.500h5.800l.6-8.500M6.800 7v3.500M9.200 7v3.500",
  copy: "M6 5.500h6.500V13H6zM10 5.500V3H3.500v7.500H6",
  check: "M3.500 8.500l3 3 6-7",
  retry: "M12.800 8a4.800 4.800 0 1 1-1.500-3.500M12.800 2.600v2.600h-2.600",
  down: "M8 3v9.500M4 8.500l4 4 4-4",
  chevron: "M6 4l4 4-4 4",
  sun: "M8 5.200a2.800 2.800 0 1 1 0 5.600 2.800 2.800 0 0 1 0-5.600zM8 1.500v1.400M8 13.100v1.400M1.500 8h1.400M13.100 8h1.400M3.400 3.400l1 1M11.600 11.600l1 1M12.600 3.400l-1 1M4.400 11.600l-1 1",
  moon: "M13 9.600A5.500 5.500 0 0 1 6.400 3a5.500 5.500 0 1 0 6.600 6.600z",
  system: "M2.500 3.500h11v7.500h-11zM6 13.500h4M8 11v2.500",
  close: "M4 4l8 8M12 4l-8 8",
  clip: "M12.800 7.300l-5 5a3.100 3.100 0 0 1-4.400-4.400l5.200-5.200a2.100 2.100 0 0 1 3 3L6.400 10.900a1 1 0 0 1-1.500-1.500l4.600-4.600",
  file: "M4 2.500h5l3 3v8H4zM9 2.500v3h3",
  presets: "M2.500 5h6M12 5h1.500M2.500 11H4M7.500 11h6M8.500 5a1.700 1.700 0 1 0 3.500 0 1.700 1.700 0 0 0-3.500 0zM4 11a1.700 1.700 0 1 0 3.500 0A1.700 1.700 0 0 0 4 11z",
  keyboard: "M2 4.500h12v7H2zM4.500 7h.1M7 7h.1M9.500 7h.1M12 7h.1M5 9.500h6",
  widen: "M9.500 3H13v3.500M13 3L9 7M6.500 13H3V9.500M3 13l4-4",
  chats: "M3 3.500h10v7H7.500L4.500 13v-2.500H3z",
  models: "M8 2.200l5 2.800v6l-5 2.800L3 11V5zM3 5l5 2.800L13 5M8 7.800v6",
  settings: "M2.500 4.500h5M10.500 4.500h3M9 3v3M2.500 8h1.500M7 8h6.500M5.500 6.500v3M2.500 11.500h6M11.500 11.500h2M10 10v3",
  more: "M3.500 8h.1M8 8h.1M12.500 8h.1",
  pin: "M6 2.500h4l-.5 4.500 2.500 2.500H4l2.500-2.500zM8 9.500v4",
  folder: "M2 4h4l1.500 1.500H14v7H2z",
  ghost: "M3 3.500h2M7 3.500h2M11 3.500h2v2M13 7.500v2M12.500 10.500h-2M8.500 10.500h-1L6 11.800M4.500 13v-2.500H3v-2M3 6.500v-1",
  branch: "M4.500 5.500v5M4.500 5.500a1.500 1.500 0 1 1 0-3 1.500 1.500 0 0 1 0 3zM4.500 13.500a1.500 1.500 0 1 1 0-3 1.500 1.500 0 0 1 0 3zM11.500 5.500a1.500 1.500 0 1 1 0-3 1.500 1.500 0 0 1 0 3zM11.500 5.500c0 3-7 2-7 5",
  onward: "M3 4.500l4 3.500-4 3.500zM8.500 4.500l4 3.500-4 3.500z",
  left: "M9.500 4.500L6 8l3.500 3.500",
  right: "M6.500 4.500L10 8l-3.500 3.500",
  upload: "M8 10.500V3M5 6l3-3 3 3M3 11v2h10v-2",
  download: "M8 3v7.500M5 7.500l3 3 3-3M3 11v2h10v-2",
  monitor: "M2 8.500h2.500L6 4l3 8.500 2-6 1 2h2",
};

/** An element: attributes and properties in `props` (`on…` are listeners, `class` a class), then its children. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list" && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A line drawing in the colour of the text around it. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  svg.classList.add("icon", `icon-${name}`);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon and says `label` to screen readers and in its tooltip. */
export function iconButton(name, label, onclick, props = {}) {
  return h("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick, ...props }, icon(name));
}

const parser = document.createElement("template");

/** Make `element` contain `html`, which the server rendered and cleaned, changing as few nodes as possible. */
export function setHTML(element, html) {
  parser.innerHTML = html;
  morph(element, parser.content);
  parser.replaceChildren();
}

/** Nodes marked `data-own` are the page's own additions and stay. */
function morph(from, to) {
  let old = skipOwn(from.firstChild);
  for (let next = to.firstChild; next; ) {
    const following = next.nextSibling;
    if (old === null) {
      from.append(next);
    } else if (old.nodeType === next.nodeType && old.nodeName === next.nodeName) {
      if (old.nodeType === Node.ELEMENT_NODE) {
        morphAttributes(old, next);
        morph(old, next);
      } else if (old.nodeValue !== next.nodeValue) {
        growText(old, next.nodeValue);
      }
      old = skipOwn(old.nextSibling);
    } else {
      const replaced = old;
      old = skipOwn(old.nextSibling);
      from.replaceChild(next, replaced);
    }
    next = following;
  }
  while (old !== null) {
    const following = skipOwn(old.nextSibling);
    old.remove();
    old = following;
  }
}

function skipOwn(node) {
  while (node !== null && node.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-own")) node = node.nextSibling;
  return node;
}

function morphAttributes(old, next) {
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name)) old.removeAttribute(name);
}

/** Adding to a text node keeps a selection inside it; replacing its value would not. */
function growText(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

/** Put text on the clipboard, also where the page has no right to it (plain http from another machine). */
export async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return;
    } catch {
      // not allowed here: the way below needs no permission
    }
  }
  const focused = document.activeElement;
  const area = h("textarea", { class: "offscreen", readonly: true, "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  focused?.focus?.({ preventScroll: true });
}

let announcer = null;

/** Say something to screen readers. */
export function announce(text) {
  if (announcer === null) {
    announcer = h("div", { class: "offscreen", role: "status", "aria-live": "polite" });
    document.body.append(announcer);
  }
  announcer.textContent = text;
}
