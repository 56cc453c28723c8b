/** The result of a query: what was asked, by whom, and the rows. */
import { counted } from "../src/bytes.js";
import { canonical, isObject, type Plain, type PlainObject } from "../src/canonical_json.js";
import { moment } from "../src/coverage.js";
import type { Entry } from "../src/evidence.js";
import type { QueryResult } from "../src/query_result.js";
import { card, type Child, element, facts, fold, small } from "./elements.js";

const MAX_COLUMNS = 20;
const MAX_CELL = 2_000;

export function resultCard(result: QueryResult, mostRows: number): HTMLElement {
  const { query, rows, request, answer, askedBy } = result;
  const conditions = conditionsOf(query["filter"]);
  const made = card(
    "The result of a query",
    facts(
      ["Asked about", listed(query["scope"]), conditions ? small(`Only ${conditions}.`) : undefined],
      ["Asked by", askedBy, small("The service recorded this.")],
      ["Asked at", ...recorded(request, "the query")],
      ["Answered at", ...recorded(answer, "the digest of the result")],
      ["Rows", ...rowsOf(rows, columnsOf(query, rows), mostRows)],
      ["Events", eventsOf(result)],
    ),
    fold("The query as the service recorded it", element("pre", "", canonical(query))),
  );
  made.id = "query";
  return made;
}

const recorded = ({ receipt }: Entry, what: string): Child[] => [
  moment(receipt.hub_ts),
  small(`According to the hub's own clock. See below: “Entry ${receipt.stream_seq}: ${what}”.`),
];

/** The columns of the rows: first those that the query names, in its order. */
function columnsOf({ projection, aggregate }: PlainObject, rows: readonly PlainObject[]): string[] {
  const groups = isObject(aggregate) ? [aggregate["group_by"], aggregate["metrics"]] : [];
  const named = [projection, ...groups].flatMap((one) => (Array.isArray(one) ? one : []));
  const present = new Set(rows.flatMap((row) => Object.keys(row)));
  const first = named.filter((name): name is string => typeof name === "string" && present.has(name));
  return [...new Set([...first, ...present])];
}

/** What a reader could take for proved, and is not. */
export function unknownOfResult(result: QueryResult): string[] {
  const said = ["Whether the rows are right and complete: the service computed them. To check that, run the query again on the events (veen query replay)."];
  const mode = modeOf(result);
  if (mode === "none") said.push("Which events are behind the rows: the query asked for no evidence.");
  if (mode === "spot") said.push("The events that are not in the sample.");
  if (result.elsewhere > 0) said.push(`${counted(result.elsewhere, "event")} of other hubs: this hub did not sign ${result.elsewhere === 1 ? "it" : "them"}.`);
  return said;
}

function eventsOf(result: QueryResult): string {
  const { receipts } = result;
  const mode = modeOf(result);
  if (mode === "none") return "Not in the file: the query asked for no evidence.";
  const which = mode === "full" ? `${counted(receipts, "event")} behind the rows` : `a sample of ${counted(receipts, "event")} behind the rows`;
  return `The hub signed the ${receipts === 1 ? "receipt" : "receipts"} of ${which}.`;
}

function modeOf({ query }: QueryResult): Plain | undefined {
  const evidence = query["evidence"];
  return isObject(evidence) ? evidence["mode"] : undefined;
}

function rowsOf(rows: readonly PlainObject[], names: readonly string[], most: number): Child[] {
  if (rows.length === 0) return ["None."];
  const shown = names.slice(0, MAX_COLUMNS);
  const head = element("tr", "", ...shown.map((name) => element("th", "", name)));
  const body = rows.slice(0, most).map((row) => element("tr", "", ...shown.map((name) => element("td", "", cell(row[name])))));
  const table = element("div", "rows", element("table", "", element("thead", "", head), element("tbody", "", ...body)));
  const rest: Child[] = [];
  if (rows.length > most) rest.push(small(`${rows.length - most} more rows were verified and are not shown.`));
  if (names.length > shown.length) rest.push(small(`${names.length - shown.length} more columns are not shown.`));
  return [counted(rows.length, "row"), table, ...rest];
}

function cell(value: Plain | undefined): string {
  if (value === undefined) return "";
  const text = typeof value === "string" ? value : canonical(value);
  return text.length > MAX_CELL ? `${text.slice(0, MAX_CELL)} … (${text.length - MAX_CELL} more characters)` : text;
}

const listed = (value: Plain | undefined): string => (Array.isArray(value) ? value.map(cell).join(", ") : cell(value));

/** The filter of a query in words; empty if it has none. */
function conditionsOf(filter: Plain | undefined): string {
  if (!isObject(filter)) return "";
  const time = isObject(filter["time"]) ? filter["time"] : {};
  const parts: [string, Plain | undefined][] = [
    ["subject", filter["subject_id"]],
    ["types", filter["event_type"]],
    ["from", time["from"]],
    ["before", time["to"]],
  ];
  return parts.flatMap(([name, value]) => (value === null || value === undefined ? [] : [`${name} ${listed(value)}`])).join(", ");
}
