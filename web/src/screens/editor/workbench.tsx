/** The editor of one file: diagram, forms and text, which all edit the same text. */
import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { put } from "../../api/client";
import { useAction } from "../../api/use-action";
import { go } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Empty } from "../../components/feedback";
import { plural } from "../../components/format";
import { PageHeader } from "../../components/layout";
import { Tag } from "../../components/state";
import { showToast } from "../../components/toasts";
import Canvas from "./diagram/canvas";
import { autoLayout, type Box, type Diagram, FORMATS, formOf, type Line, type Point } from "./diagram/diagram";
import { modeOf } from "./diagram/graph-format";
import { NodePalette } from "./diagram/node-palette";
import { DryRun } from "./dry-run";
import "./editor.css";
import { Conflict } from "./files/conflict";
import { readDraft, readPositions, saveDraft, savePositions } from "./files/drafts";
import { FileActDialog } from "./files/file-dialogs";
import { editorUrl, fileUrl } from "./files/paths";
import { SaveDialog } from "./files/save-dialog";
import { BoxForm, FileForm } from "./node-form";
import { Problems } from "./problems";
import { DagStart, type NodeResult, WorkflowRuns } from "./runs";
import { useEditorKeys } from "./shortcuts";
import { type Data, edit as editText, read } from "./text/document";
import { type Jump, TextView } from "./text/text-view";
import type { Edit, FileProblem, Kind, Kinds, WorkFile } from "./types";
import { useHistory } from "./undo-history";
import { useChecked } from "./use-check";

const VIEWS = ["diagram", "both", "text"] as const;
const NOTHING: Diagram = { boxes: [], lines: [] };

interface Props {
  path: string;
  /** The file on the server; null for a new one. */
  file: WorkFile | null;
  /** The initial text of a new file. */
  first: string;
  kinds: Kinds;
  files: string[];
  onReload: () => void;
}

/** The version that is being edited, with Unix line ends. */
interface Base {
  text: string | null;
  version: string | null;
}

/** What is known of a text that could never be parsed: not even its form. */
const UNREAD: Data = {};

const unix = (text: string) => text.replaceAll("\r\n", "\n");

export function Workbench({ path, file, first, kinds, files, onReload }: Props) {
  const isEditor = useMay("editor");
  const isAdmin = useMay("admin");
  const mayDryRun = useMay("operator");
  const [draft] = useState(() => readDraft(path));
  const [base, setBase] = useState<Base>(() => (draft ? { text: draft.base, version: draft.version } : { text: file ? unix(file.text) : null, version: file?.version ?? null }));
  const history = useHistory(draft?.text ?? (file ? unix(file.text) : first));
  const [restored, setRestored] = useState(draft !== null);
  const [chosen, setChosen] = useState<string | null>(null);
  const [atFirst] = useState(() => read(history.text, path)); // A text that cannot be drawn is opened as text, at its error.
  const [view, setView] = useState<(typeof VIEWS)[number]>(atFirst.data ? "diagram" : "text");
  const [open, setOpen] = useState<"save" | "try" | "rename" | "delete" | null>(null);
  const [jump, setJump] = useState<Jump | null>(atFirst.line === undefined ? null : { line: atFirst.line, nonce: 0 });
  const [fit, setFit] = useState(0);
  const [results, setResults] = useState<NodeResult[] | null>(null);
  const [moved, setMoved] = useState(() => readPositions(path));
  const { text } = history;
  const isChanged = text !== base.text;
  const isLocked = !isEditor;

  // The diagram shows the last text that could be parsed.
  const found = useMemo(() => read(text, path), [text, path]);
  const good = useRef<Data>(UNREAD);
  if (found.data) good.current = found.data;
  const data = found.data ?? good.current;
  const form = formOf(data, path);
  const format = FORMATS[form];
  const diagram = useMemo(() => (Object.keys(data).length ? format.draw(data, kinds) : NOTHING), [data, kinds, format]);
  const check = useChecked(path, text, file && text === unix(file.text) ? file.checked : null);
  const problems = check.checked?.problems ?? [];
  const adminReason = isAdmin ? null : (check.checked?.admin_reason ?? file?.checked.admin_reason ?? null);
  const may = isEditor && adminReason === null;
  const box = diagram.boxes.find((each) => each.id === chosen) ?? null;
  const isStale = found.data === null;
  const isUnread = isStale && data === UNREAD;
  const stays = isLocked || isStale;

  const places = useMemo(() => {
    const automatic = autoLayout(diagram);
    const taken = new Set<string>();
    return new Map(
      diagram.boxes.map((each) => {
        const stored = (format.storesPositions ? each.position : moved[each.id]) ?? null;
        const key = stored && `${stored.x} ${stored.y}`;
        const isHidden = key !== null && taken.has(key); // A file of another program may place all boxes at one point.
        if (key !== null) taken.add(key);
        return [each.id, (isHidden ? null : stored) ?? automatic.get(each.id) ?? { x: 0, y: 0 }];
      }),
    );
  }, [diagram, moved, format]);

  useEffect(() => saveDraft(path, isChanged && text !== first ? { version: base.version, base: base.text, text } : null), [path, text, first, base, isChanged]);
  useEffect(() => savePositions(path, moved), [path, moved]);
  useEffect(() => {
    const ask = (event: BeforeUnloadEvent) => event.preventDefault();
    if (isChanged) window.addEventListener("beforeunload", ask);
    return () => window.removeEventListener("beforeunload", ask);
  }, [isChanged]);
  useEditorKeys({ undo: history.undo, redo: history.redo, save: () => may && isChanged && setOpen("save"), escape: () => setChosen(null) });

  const change = useCallback(
    (edits: Edit[], key?: string) => {
      if (edits.length === 0) return;
      try {
        history.change(editText(text, path, edits), key);
      } catch (error) {
        showToast(error instanceof Error ? error.message : String(error), { isError: true });
      }
    },
    [history, text, path],
  );
  const add = (kind: Kind, at: Point | null) => {
    const after = at === null ? box : null;
    const near = after ? places.get(after.id) : null;
    const spot = at ?? (near ? { x: near.x + 230, y: near.y } : freeSpot(places));
    const edits = format.add(data, kind, spot, kind.is_start ? null : after);
    change(edits);
    const made = edits.map((each) => ("value" in each ? (each.value as Data | Data[] | undefined) : undefined)).flat()[0] as Data | undefined;
    const id = String((form === "dag" ? made?.name : made?.id) ?? "");
    if (!format.storesPositions && at) setMoved((before) => ({ ...before, [id]: at }));
    if (at === null) setFit(fit + 1); // It may be out of view.
    setChosen(id);
  };
  const move = (next: Map<string, Point>) => {
    if (!format.storesPositions) {
      setMoved((before) => ({ ...before, ...Object.fromEntries(next) }));
      return;
    }
    change(diagram.boxes.flatMap((each) => placeEdits(each, next.get(each.id))), `move ${[...next.keys()].join(" ")}`);
  };
  const arrange = () => {
    if (format.storesPositions) move(autoLayout(diagram));
    else setMoved({});
    setFit(fit + 1);
  };
  const rename = (name: string) => {
    if (!box) return;
    change(format.rename(data, diagram, box, name));
    if (form !== "graph") {
      setMoved(({ [box.id]: place, ...others }) => (place ? { ...others, [name]: place } : others));
      setChosen(name);
    }
  };
  const drop = (boxes: Box[], lines: Line[]) => {
    change(boxes.length ? format.drop(data, diagram, boxes) : format.cut(data, diagram, lines));
    if (boxes.some((each) => each.id === chosen)) setChosen(null);
  };
  const goTo = (problem: FileProblem) => {
    const at = diagram.boxes.find((each) => each.at === problem.node);
    if (at) setChosen(at.id);
    if (view !== "diagram" || isStale) {
      if (view === "diagram") setView("text");
      if (problem.line !== null) setJump({ line: problem.line, nonce: Date.now() });
    } else if (!at) setChosen(null);
  };

  const isCrlf = file?.text.includes("\r\n") ?? false;
  const sent = isCrlf ? text.replaceAll("\n", "\r\n") : text;
  const client = useQueryClient();
  const save = useAction<boolean, Omit<WorkFile, "text">>({
    request: async (broken) => {
      await client.cancelQueries({ queryKey: ["workflow-file", path] }); // A pending read would return the old version.
      return put<Omit<WorkFile, "text">>(fileUrl(path), { text: sent, broken }, base.version === null ? { "If-None-Match": "*" } : { "If-Match": `"${base.version}"` });
    },
    message: () => `Saved ${path}.`,
    onSuccess: (saved) => {
      // The cache still holds the old version, which must not look like a change by another user.
      client.setQueryData(["workflow-file", path], { path, text: sent, version: saved.version, checked: saved.checked });
      setBase({ text, version: saved.version });
      setOpen(null);
      setRestored(false);
      saveDraft(path, null);
      if (file === null) go(editorUrl(path), { replace: true });
    },
  });
  const isRefused = save.error !== null;
  useEffect(() => {
    if (!isRefused) return;
    setOpen(null); // The file may have changed on the server: read it again.
    onReload();
  }, [isRefused, onReload]);

  const isChangedOnServer = file !== null && file.version !== base.version && !save.isPending && unix(file.text) !== text;
  useEffect(() => {
    if (!isChangedOnServer || isChanged || !file) return;
    history.reset(unix(file.text)); // There are no local changes to lose.
    setBase({ text: unix(file.text), version: file.version });
    showToast(`${path} was changed on the server. This is the new version.`);
  }, [isChangedOnServer, isChanged, file, history, path]);
  useEffect(() => {
    if (file && file.version !== base.version && unix(file.text) === text) setBase({ text, version: file.version });
  }, [file, base.version, text]);

  const errors = problems.filter((each) => each.severity === "error").length;
  const props = { form, data, kinds, files, diagram, problems, locked: stays, onEdit: change };
  const isTrigger = form === "graph" && modeOf(data) === "trigger";
  const byNode = useMemo(() => (results ? Object.fromEntries(results.map((each) => [each.name, each])) : null), [results]);
  const pin = (name: string, output: unknown) => {
    const place = format.dataOf(data, diagram, name);
    if (place === null) return;
    change(output === undefined ? [{ path: [...place, "pinned"], value: undefined }, { path: [...place, "pinnedOutput"], value: undefined }] : [{ path: [...place, "pinned"], value: true }, { path: [...place, "pinnedOutput"], value: output }]);
  };
  const isPipeline = form === "stages" || (form === "graph" && modeOf(data) === "pipeline");
  return (
    <>
      <PageHeader
        title={path}
        subtitle={
          <span className="row">
            <Tag>{isUnread ? "cannot be read" : form === "dag" ? "dag" : form === "stages" ? "pipeline (stages)" : modeOf(data)}</Tag>
            {file === null && <Tag tone="run">new</Tag>}
            {isChanged ? <Tag tone="wait">unsaved changes</Tag> : <Tag tone="ok">saved</Tag>}
            {errors > 0 && <Tag tone="bad">{plural(errors, "error")}</Tag>}
            {isLocked && <span className="soft">Read-only: changing files needs the role editor.</span>}
            {!isLocked && adminReason && <span className="soft">Only an admin can save this: {adminReason}.</span>}
          </span>
        }
      >
        <Button onClick={history.undo} disabled={!history.canUndo} title="Ctrl Z">
          Undo
        </Button>
        <Button onClick={history.redo} disabled={!history.canRedo} title="Ctrl Shift Z">
          Redo
        </Button>
        <Button onClick={arrange} disabled={stays && format.storesPositions}>
          Auto layout
        </Button>
        {mayDryRun && (
          <Button onClick={() => setOpen("try")} disabled={isStale}>
            Dry run
          </Button>
        )}
        {may && file !== null && <Button onClick={() => setOpen("rename")}>Rename …</Button>}
        {may && file !== null && (
          <Button kind="danger" onClick={() => setOpen("delete")}>
            Delete …
          </Button>
        )}
        {may && (
          <Button kind="main" disabled={!isChanged} onClick={() => setOpen("save")} title="Ctrl S">
            Save …
          </Button>
        )}
      </PageHeader>
      {restored && isChanged && (
        <div className="note run" role="status">
          <span>Your unsaved changes were restored from this browser.</span>
          <Button
            onClick={() => {
              history.change(base.text ?? first);
              setRestored(false);
            }}
          >
            Discard them
          </Button>
        </div>
      )}
      {isChangedOnServer && isChanged && file && <Conflict file={file} base={base.text} mine={text} onTake={() => { history.change(unix(file.text)); setBase({ text: unix(file.text), version: file.version }); }} onKeep={() => setBase({ text: unix(file.text), version: file.version })} />}
      <div className="views chips" role="group" aria-label="View">
        {VIEWS.map((each) => (
          <button key={each} type="button" className="chip" aria-pressed={view === each} onClick={() => { setView(each); setFit(fit + 1); }}>
            {each}
          </button>
        ))}
      </div>
      <div className={`bench ${view}`}>
        {view !== "text" && <NodePalette kinds={isUnread ? [] : format.palette(data, kinds)} locked={stays} onAdd={(kind) => add(kind, null)} />}
        <div className="middle">
          {view !== "text" && (
            <div className={isStale ? "panel canvas stale" : "panel canvas"}>
              {isStale && (
                <div className="over" role="alert">
                  {found.wrong} {found.line !== undefined && `(line ${found.line})`} {isUnread ? "There is no diagram of it yet." : "The diagram shows the last valid text."}
                </div>
              )}
              {diagram.boxes.length === 0 && !isStale && (
                <div className="hint">
                  <Empty title="No nodes yet">Drag a node type from the left into this area, or click one.</Empty>
                </div>
              )}
              <Canvas diagram={diagram} places={places} problems={problems} results={byNode} chosen={chosen} locked={stays} fit={fit} onChoose={setChosen} onDeselect={(ids) => setChosen((now) => (now !== null && ids.includes(now) ? null : now))} onMove={move} onConnect={(from, to, exit) => change(format.connect(data, diagram, from, to, exit))} onDelete={drop} onDrop={(type, at) => { const kind = format.palette(data, kinds).find((each) => each.type === type); if (kind && !stays) add(kind, at); }} />
            </div>
          )}
          {isStale && view === "text" && (
            <p className="note bad" role="alert">
              {found.wrong} {found.line !== undefined && `(line ${found.line})`}
            </p>
          )}
          {view !== "diagram" && <TextView text={text} label={`Text of ${path}`} locked={isLocked} problems={problems} jump={jump} onChange={(next) => history.change(next, "text")} />}
          <Problems problems={problems} names={diagram.boxes.map((each) => each.label)} isChecking={check.isChecking} failed={check.failed} onGo={goTo} />
          {(isTrigger || isPipeline) && (
            <WorkflowRuns path={path} text={sent} name={String(data.name || stemOf(path))} isPipeline={isPipeline} isSaved={file !== null && !isChanged} hasErrors={isStale || errors > 0} mayDraft={may} chosen={box?.label ?? null} onResults={setResults} onPin={pin} />
          )}
          {form === "dag" && mayDryRun && diagram.boxes.length > 0 && <DagStart data={data} hasErrors={isStale || errors > 0} />}
        </div>
        {view !== "text" && (box ? <BoxForm key={box.id} box={box} onRename={rename} onChoose={setChosen} onDelete={() => drop([box], [])} {...props} /> : !isUnread && <FileForm {...props} />)}
      </div>
      {open === "save" && <SaveDialog path={path} before={base.text} after={text} problems={problems} busy={save.isPending} onSave={(broken) => save.mutate(broken)} onClose={() => setOpen(null)} />}
      {file !== null && (open === "rename" || open === "delete") && <FileActDialog act={{ verb: open, path, version: file.version }} files={files} onDone={(now) => go(now === null ? "/editor" : editorUrl(now), { replace: true })} onClose={() => setOpen(null)} />}
      {open === "try" && <DryRun path={path} text={text} isPipeline={isPipeline} isDag={form === "dag"} onClose={() => setOpen(null)} />}
    </>
  );
}

/** A file's name without folder and ending: the name of its workflow, unless it has another. */
const stemOf = (path: string) => path.slice(path.lastIndexOf("/") + 1).replace(/\.[^.]*$/, "");

/** Edits that move a box; other fields of its position stay. */
function placeEdits(box: Box, to: Point | undefined): Edit[] {
  if (!to || (box.position && box.position.x === to.x && box.position.y === to.y)) return [];
  const path = ["nodes", box.at, "position"];
  return box.position ? [{ path: [...path, "x"], value: to.x }, { path: [...path, "y"], value: to.y }] : [{ path, value: to }];
}

/** A free position for a new box, below the last one. */
function freeSpot(places: Map<string, Point>): Point {
  const all = [...places.values()];
  if (all.length === 0) return { x: 0, y: 0 };
  return { x: Math.min(...all.map((each) => each.x)), y: Math.max(...all.map((each) => each.y)) + 84 };
}
