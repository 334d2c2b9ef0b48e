/** One file on the bench: its picture, its forms and its text, which are one and the same. */
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { put } from "../api";
import { useAction } from "../parts/acting";
import { say } from "../parts/toasts";
import { Button, Empty, Head, Tag } from "../parts/ui";
import { go } from "../router";
import { useMay } from "../session";
import Canvas from "./canvas";
import { useChecked } from "./checking";
import { type Data, edit as editText, read } from "./doc";
import { keepDraft, keepPlaces, keptDraft, keptPlaces } from "./drafts";
import { DryRun } from "./dryrun";
import "./editor.css";
import { FileActDialog } from "./fileacts";
import { BoxForm, FileForm } from "./form";
import { modeOf } from "./graphform";
import { useHistory } from "./history";
import { useEditorKeys } from "./keys";
import { arranged, type Box, formOf, type Line, type Picture, type Point, SHAPES } from "./model";
import { NodePalette } from "./palette";
import { fileUrl, pageOf } from "./paths";
import { Problems } from "./problems";
import { Saving } from "./saving";
import { type Jump, TextView } from "./textview";
import { Theirs } from "./theirs";
import type { Edit, Kind, Kinds, Trouble, WorkFile } from "./types";

const VIEWS = ["picture", "both", "text"] as const;
const NOTHING: Picture = { boxes: [], lines: [] };

interface Props {
  path: string;
  /** The file as the server has it; null for a new one. */
  file: WorkFile | null;
  /** What a new file begins with. */
  first: string;
  kinds: Kinds;
  files: string[];
  onReload: () => void;
}

/** What the text is changed from: the version that was read, with line ends as browsers have them. */
interface Base {
  text: string | null;
  version: string | null;
}

const unix = (text: string) => text.replaceAll("\r\n", "\n");

export function Workbench({ path, file, first, kinds, files, onReload }: Props) {
  const may = useMay("admin");
  const mayTry = useMay("operate");
  const [kept] = useState(() => keptDraft(path));
  const [base, setBase] = useState<Base>(() => (kept ? { text: kept.base, version: kept.version } : { text: file ? unix(file.text) : null, version: file?.version ?? null }));
  const history = useHistory(kept?.text ?? (file ? unix(file.text) : first));
  const [restored, setRestored] = useState(kept !== null);
  const [chosen, setChosen] = useState<string | null>(null);
  const [view, setView] = useState<(typeof VIEWS)[number]>("picture");
  const [open, setOpen] = useState<"save" | "try" | "rename" | "delete" | null>(null);
  const [jump, setJump] = useState<Jump | null>(null);
  const [fit, setFit] = useState(0);
  const [moved, setMoved] = useState(() => keptPlaces(path));
  const { text } = history;
  const isChanged = text !== base.text;
  const isLocked = !may;

  // The last text that could be read is what the picture shows, while the one that is typed cannot be.
  const found = useMemo(() => read(text, path), [text, path]);
  const good = useRef<Data>({});
  if (found.data) good.current = found.data;
  const data = found.data ?? good.current;
  const form = formOf(data, path);
  const shape = SHAPES[form];
  const picture = useMemo(() => (Object.keys(data).length ? shape.draw(data, kinds) : NOTHING), [data, kinds, shape]);
  const check = useChecked(path, text, file && text === unix(file.text) ? file.checked : null);
  const problems = check.checked?.problems ?? [];
  const box = picture.boxes.find((each) => each.id === chosen) ?? null;
  const isStale = found.data === null;
  const stays = isLocked || isStale;

  const places = useMemo(() => {
    const automatic = arranged(picture);
    return new Map(picture.boxes.map((each) => [each.id, (shape.keepsPlaces ? each.position : moved[each.id]) ?? automatic.get(each.id) ?? { x: 0, y: 0 }]));
  }, [picture, moved, shape]);

  useEffect(() => keepDraft(path, isChanged && text !== first ? { version: base.version, base: base.text, text } : null), [path, text, first, base, isChanged]);
  useEffect(() => keepPlaces(path, moved), [path, moved]);
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
        say(error instanceof Error ? error.message : String(error), { bad: true });
      }
    },
    [history, text, path],
  );
  const add = (kind: Kind, at: Point | null) => {
    const after = at === null ? box : null;
    const near = after ? places.get(after.id) : null;
    const spot = at ?? (near ? { x: near.x + 230, y: near.y } : freeSpot(places));
    const edits = shape.add(data, kind, spot, kind.is_start ? null : after);
    change(edits);
    const made = edits.map((each) => ("value" in each ? (each.value as Data | Data[] | undefined) : undefined)).flat()[0] as Data | undefined;
    const id = String((form === "dag" ? made?.name : made?.id) ?? "");
    if (!shape.keepsPlaces && at) setMoved((before) => ({ ...before, [id]: at }));
    setChosen(id);
  };
  const move = (next: Map<string, Point>) => {
    if (!shape.keepsPlaces) {
      setMoved((before) => ({ ...before, ...Object.fromEntries(next) }));
      return;
    }
    change(picture.boxes.flatMap((each) => placeEdits(each, next.get(each.id))), `move ${[...next.keys()].join(" ")}`);
  };
  const arrange = () => {
    if (shape.keepsPlaces) move(arranged(picture));
    else setMoved({});
    setFit(fit + 1);
  };
  const rename = (name: string) => {
    if (!box) return;
    change(shape.rename(data, picture, box, name));
    if (form !== "graph") {
      setMoved(({ [box.id]: place, ...others }) => (place ? { ...others, [name]: place } : others));
      setChosen(name);
    }
  };
  const drop = (boxes: Box[], lines: Line[]) => {
    change(boxes.length ? shape.drop(data, picture, boxes) : shape.cut(data, picture, lines));
    if (boxes.some((each) => each.id === chosen)) setChosen(null);
  };
  const goTo = (problem: Trouble) => {
    const at = picture.boxes.find((each) => each.at === problem.node);
    if (at) setChosen(at.id);
    if (view !== "picture" || isStale) {
      if (view === "picture") setView("text");
      if (problem.line !== null) setJump({ line: problem.line, nonce: Date.now() });
    } else if (!at) setChosen(null);
  };

  const isCrlf = file?.text.includes("\r\n") ?? false;
  const save = useAction<boolean, WorkFile>({
    act: (broken) => put<WorkFile>(fileUrl(path), { text: isCrlf ? text.replaceAll("\n", "\r\n") : text, broken }, base.version === null ? { "If-None-Match": "*" } : { "If-Match": `"${base.version}"` }),
    told: () => `${path} is saved.`,
    then: (saved) => {
      setBase({ text, version: saved.version });
      setOpen(null);
      setRestored(false);
      keepDraft(path, null);
      if (file === null) go(pageOf(path), { replace: true });
    },
  });
  const isRefused = save.error !== null;
  useEffect(() => {
    if (!isRefused) return;
    setOpen(null); // Somebody was quicker, or something is wrong: what there is now is asked for, and shown.
    onReload();
  }, [isRefused, onReload]);

  const isTheirs = file !== null && file.version !== base.version && !save.isPending && unix(file.text) !== text;
  useEffect(() => {
    if (!isTheirs || isChanged || !file) return;
    history.reset(unix(file.text)); // Nothing of ours is at stake: what is in the file now is shown.
    setBase({ text: unix(file.text), version: file.version });
    say(`${path} was changed by somebody else: this is how it is now.`);
  }, [isTheirs, isChanged, file, history, path]);
  useEffect(() => {
    if (file && file.version !== base.version && unix(file.text) === text) setBase({ text, version: file.version });
  }, [file, base.version, text]);

  const errors = problems.filter((each) => each.severity === "error").length;
  const props = { form, data, kinds, files, picture, problems, locked: stays, onEdit: change };
  const isPipeline = form === "stages" || (form === "graph" && modeOf(data) === "pipeline");
  return (
    <>
      <Head
        title={path}
        under={
          <span className="row">
            <Tag>{form === "dag" ? "dag" : form === "stages" ? "pipeline of stages" : modeOf(data)}</Tag>
            {file === null && <Tag tone="run">new</Tag>}
            {isChanged ? <Tag tone="wait">not saved</Tag> : <Tag tone="ok">saved</Tag>}
            {errors > 0 && <Tag tone="bad">{errors} wrong</Tag>}
            {isLocked && <span className="soft">You may look; changing files needs the scope admin.</span>}
          </span>
        }
      >
        <Button onClick={history.undo} disabled={!history.canUndo} title="Ctrl Z">
          Undo
        </Button>
        <Button onClick={history.redo} disabled={!history.canRedo} title="Ctrl Shift Z">
          Redo
        </Button>
        <Button onClick={arrange} disabled={stays && shape.keepsPlaces}>
          Lay out
        </Button>
        {mayTry && (
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
      </Head>
      {restored && isChanged && (
        <div className="note run" role="status">
          <span>These are changes that you have not saved; this browser has kept them.</span>
          <Button
            onClick={() => {
              history.change(base.text ?? first);
              setRestored(false);
            }}
          >
            Throw them away
          </Button>
        </div>
      )}
      {isTheirs && isChanged && file && <Theirs file={file} base={base.text} mine={text} onTake={() => { history.change(unix(file.text)); setBase({ text: unix(file.text), version: file.version }); }} onKeep={() => setBase({ text: unix(file.text), version: file.version })} />}
      <div className="views chips" role="group" aria-label="View">
        {VIEWS.map((each) => (
          <button key={each} type="button" className="chip" aria-pressed={view === each} onClick={() => { setView(each); setFit(fit + 1); }}>
            {each}
          </button>
        ))}
      </div>
      <div className={`bench ${view}`}>
        {view !== "text" && <NodePalette kinds={shape.palette(data, kinds)} locked={stays} onAdd={(kind) => add(kind, null)} />}
        <div className="middle">
          {view !== "text" && (
            <div className={isStale ? "panel canvas stale" : "panel canvas"}>
              {isStale && (
                <div className="over" role="alert">
                  {found.wrong} {found.line !== undefined && `(line ${found.line})`} The picture shows what was there before.
                </div>
              )}
              {picture.boxes.length === 0 && !isStale && (
                <div className="hint">
                  <Empty title="Nothing in it yet">Drag a kind of node from the left into this space, or press one.</Empty>
                </div>
              )}
              <Canvas picture={picture} places={places} problems={problems} chosen={chosen} locked={stays} fit={fit} onChoose={setChosen} onMove={move} onConnect={(from, to, exit) => change(shape.connect(data, picture, from, to, exit))} onDelete={drop} onDrop={(type, at) => { const kind = shape.palette(data, kinds).find((each) => each.type === type); if (kind && !stays) add(kind, at); }} />
            </div>
          )}
          {view !== "picture" && <TextView text={text} label={`Text of ${path}`} locked={isLocked} problems={problems} jump={jump} onChange={(next) => history.change(next, "text")} />}
          <Problems problems={problems} names={picture.boxes.map((each) => each.label)} isChecking={check.isChecking} failed={check.failed} onGo={goTo} />
        </div>
        {view !== "text" && (box ? <BoxForm key={box.id} box={box} onRename={rename} onChoose={setChosen} onDelete={() => drop([box], [])} {...props} /> : <FileForm {...props} />)}
      </div>
      {open === "save" && <Saving path={path} before={base.text} after={text} problems={problems} busy={save.isPending} onSave={(broken) => save.mutate(broken)} onClose={() => setOpen(null)} />}
      {file !== null && (open === "rename" || open === "delete") && <FileActDialog act={{ verb: open, path, version: file.version }} files={files} onDone={(now) => go(now === null ? "/editor" : pageOf(now), { replace: true })} onClose={() => setOpen(null)} />}
      {open === "try" && <DryRun path={path} text={text} isPipeline={isPipeline} isDag={form === "dag"} onClose={() => setOpen(null)} />}
    </>
  );
}

/** Changes that put a box somewhere else; what else its place holds stays. */
function placeEdits(box: Box, to: Point | undefined): Edit[] {
  if (!to || (box.position && box.position.x === to.x && box.position.y === to.y)) return [];
  const path = ["nodes", box.at, "position"];
  return box.position ? [{ path: [...path, "x"], value: to.x }, { path: [...path, "y"], value: to.y }] : [{ path, value: to }];
}

/** A place for a new box where none is yet: after the last one. */
function freeSpot(places: Map<string, Point>): Point {
  const all = [...places.values()];
  if (all.length === 0) return { x: 0, y: 0 };
  return { x: Math.min(...all.map((each) => each.x)), y: Math.max(...all.map((each) => each.y)) + 84 };
}
