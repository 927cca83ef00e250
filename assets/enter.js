// Sends the key once; the server answers with a cookie that this script cannot read.

const PATH = "/api/enter";
const TRIED = "octavo-entered";

const form = document.querySelector("form");
const problem = form.querySelector(".problem");

/** Ask for the same address again, now with the cookie. */
function enter() {
  sessionStorage.setItem(TRIED, "yes");
  location.replace(location.href.split("#")[0]);
  if (location.hash) location.reload();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  problem.textContent = "";
  try {
    const answer = await fetch(PATH, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ key: form.key.value.trim() }),
    });
    if (answer.ok) return enter();
    const wait = answer.headers.get("retry-after");
    problem.textContent = wait ? form.dataset.wait.replace("{s}", wait) : form.dataset.wrong;
    form.key.select();
  } catch {
    problem.textContent = form.dataset.unreachable;
  } finally {
    button.disabled = false;
  }
});

// Came here by a link of another page: the browser left the cookie out, though it has it.
if (sessionStorage.getItem(TRIED) === null) {
  const answer = await fetch(PATH).catch(() => null);
  if (answer?.ok) enter();
}
sessionStorage.removeItem(TRIED);
