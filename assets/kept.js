// What a reload of the page must not lose, by name: for as long as the tab is open.

export function keep(key, text) {
  try {
    if (text) sessionStorage.setItem(key, text);
    else sessionStorage.removeItem(key);
  } catch {
    // a text larger than the browser keeps: it is there until the tab closes
  }
}

/** The list that was kept as JSON, or an empty one. */
export function kept(key) {
  try {
    return JSON.parse(sessionStorage.getItem(key)) ?? [];
  } catch {
    return [];
  }
}
