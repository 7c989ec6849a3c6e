const table = document.querySelector("#labels table");
const rows = [...table.tBodies[0].rows];
const search = document.querySelector(".search");
const shown = search.querySelector("output");
search.hidden = false;
search.querySelector("input").addEventListener("input", (event) => {
  const wanted = event.target.value.trim().toLowerCase();
  let count = 0;
  for (const row of rows) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
    count += !row.hidden;
  }
  shown.textContent = `${count} of ${rows.length} labels`;
});
[...table.tHead.rows[0].cells].forEach((head, column) => {
  const button = document.createElement("button");
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const text = (row) => row.cells[column].textContent;
    const number = (row) => Number(text(row).replaceAll(",", ""));
    const down = head.ariaSort ? head.ariaSort === "ascending" : column > 0;
    const order = column ? (a, b) => number(a) - number(b) : (a, b) => text(a).localeCompare(text(b));
    rows.sort((a, b) => (down ? order(b, a) : order(a, b)));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.ariaSort = down ? "descending" : "ascending";
    table.tBodies[0].append(...rows);
  });
});
