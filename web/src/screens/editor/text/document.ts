/** Parses a workflow file, and edits parts of its text while formatting and comments of the rest stay. */
import { type Document, isAlias, isCollection, isMap, isNode, isScalar, isSeq, Lexer, parseDocument } from "yaml";
import { type ParseError, parseTree } from "jsonc-parser";
import type { Edit, Step } from "../types";
import { editJson } from "./json-edit";

export type Data = Record<string, unknown>;

export interface Read {
  data: Data | null;
  /** Why the text cannot be parsed, and on which line. */
  wrong?: string;
  line?: number;
}

const isJson = (file: string) => file.endsWith(".json");

/** Parse a text. */
export function read(text: string, file: string): Read {
  return isJson(file) ? readJson(text) : readYaml(text);
}

function readJson(text: string): Read {
  try {
    return objectOf(JSON.parse(text.replace(/^\ufeff/, "")));
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error);
    const errors: ParseError[] = [];
    parseTree(text, errors, { disallowComments: true });
    const at = errors[0]?.offset; // Browsers tell the place in words of their own, or not at all.
    return { data: null, wrong: `Not valid JSON: ${message.replace(/ \(line \d+ column \d+\)$/, "")}`, line: at === undefined ? undefined : text.slice(0, at).split("\n").length };
  }
}

function readYaml(text: string): Read {
  const doc = parsed(text);
  const error = doc.errors[0];
  if (error) return { data: null, wrong: `Not valid YAML: ${error.message.split("\n")[0]?.replace(/ at line \d+, column \d+:?$/, "")}.`, line: error.linePos?.[0].line };
  try {
    return objectOf(doc.toJS({ maxAliasCount: 1000 }));
  } catch (problem) {
    return { data: null, wrong: problem instanceof Error ? problem.message : String(problem) };
  }
}

function objectOf(data: unknown): Read {
  if (data === null || typeof data !== "object" || Array.isArray(data)) return { data: null, wrong: "A workflow file must be an object with nodes or stages.", line: 1 };
  return { data: data as Data };
}

const parsed = (text: string) => parseDocument(text, { version: "1.2", strict: false });

/** The text after these edits. */
export function edit(text: string, file: string, edits: Edit[]): string {
  if (isJson(file)) return edits.reduce(editJson, text);
  const doc = parsed(text);
  for (const each of edits) editYaml(doc, each);
  return doc.toString({ lineWidth: 0, indent: indentOf(text), indentSeq: !/^nodes:\s*\n-/m.test(text), flowCollectionPadding: !/[{[][^\s{}[\]]/.test(withoutStrings(text)) });
}

function editYaml(doc: Document, change: Edit): void {
  if ("order" in change) {
    const list = doc.getIn(change.path, true);
    if (isSeq(list)) list.items = change.order.map((index) => list.items[index]);
    return;
  }
  if (change.value === undefined) {
    if (doc.hasIn(change.path)) doc.deleteIn(change.path);
    return;
  }
  const steps = change.path;
  for (let depth = 1; depth < steps.length; depth += 1) {
    if (isAlias(doc.getIn(steps.slice(0, depth), true))) throw new Error(`${pathText(steps)} is written with an alias (*name). Change it in the text view.`);
  }
  const parent = steps.length > 1 ? doc.getIn(steps.slice(0, -1), true) : doc.contents;
  if (isCollection(parent) && parent.items.length === 0) parent.flow = false;
  const before = doc.getIn(steps, true);
  doc.setIn(steps, before === undefined || before === null ? madeNode(doc, change.value, steps) : merged(doc, before, change.value));
}

/** A new value: a node has one field per line, everything inside it is on one line. */
function madeNode(doc: Document, value: unknown, steps: Step[]): unknown {
  const node = doc.createNode(value);
  const isEntry = steps.length === 2 && typeof steps[1] === "number";
  if (isCollection(node)) node.flow = !isEntry;
  if (isEntry && isMap(node)) for (const pair of node.items) if (isCollection(pair.value)) pair.value.flow = true;
  return node;
}

/** Change a value; unchanged parts keep their formatting and comments. */
function merged(doc: Document, before: unknown, value: unknown): unknown {
  if (isScalar(before) && (value === null || typeof value !== "object")) {
    before.value = value;
    return before;
  }
  if (isSeq(before) && Array.isArray(value)) {
    const left = [...before.items];
    before.items = value.map((each: unknown) => {
      const at = left.findIndex((item) => same(plain(doc, item), each));
      return at < 0 ? doc.createNode(each) : left.splice(at, 1)[0];
    });
    return before;
  }
  if (isMap(before) && value !== null && typeof value === "object" && !Array.isArray(value)) {
    const next = new Map(Object.entries(value).filter(([, each]) => each !== undefined));
    for (const pair of [...before.items]) {
      const key = isScalar(pair.key) ? String(pair.key.value) : "";
      if (next.has(key)) pair.value = same(plain(doc, pair.value), next.get(key)) ? pair.value : merged(doc, pair.value, next.get(key));
      else before.delete(pair.key);
      next.delete(key);
    }
    for (const [key, each] of next) before.set(key, inside(doc, each));
    return before;
  }
  const node = inside(doc, value);
  if (isNode(before) && isNode(node)) Object.assign(node, { comment: before.comment, commentBefore: before.commentBefore, spaceBefore: before.spaceBefore });
  return node;
}

function inside(doc: Document, value: unknown): unknown {
  const node = doc.createNode(value);
  if (isCollection(node)) node.flow = true;
  return node;
}

const plain = (doc: Document, node: unknown): unknown => (isNode(node) ? node.toJS(doc) : node);

const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);

const pathText = (steps: Step[]) => steps.map((step) => (typeof step === "number" ? `[${step}]` : `.${step}`)).join("").replace(/^\./, "");

const withoutStrings = (text: string) => text.replaceAll(/#.*$|"(?:\\.|[^"\\])*"|'[^']*'/gm, "");

function indentOf(text: string): number {
  const found = /^( +)\S/m.exec(text)?.[1]?.length ?? 2;
  return found >= 1 && found <= 8 ? found : 2;
}

/** Comments of the first text that the second does not have. */
export function lostComments(before: string, after: string, file: string): string[] {
  if (isJson(file)) return [];
  const left = comments(after);
  return comments(before).filter((each) => {
    const at = left.indexOf(each);
    if (at >= 0) left.splice(at, 1);
    return at < 0;
  });
}

function comments(text: string): string[] {
  return [...new Lexer().lex(text)].filter((token) => token.startsWith("#")).map((token) => token.trim());
}
