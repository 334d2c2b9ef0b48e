/** Workflow files: the folder, and one of them in the editor. */
import { useQuery } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { get, Problem } from "../api";
import { drafted, keptDraft } from "../editor/drafts";
import { type FileAct, FileActDialog } from "../editor/fileacts";
import { begin, isBeginning, NewFile } from "../editor/newfile";
import { fileUrl, pageOf } from "../editor/paths";
import type { Files, Kinds, WorkFile } from "../editor/types";
import { Workbench } from "../editor/workbench";
import { Acts, num, Table } from "../parts/table";
import { bytes, Button, Empty, Head, Loading, Panel, Tag, Trouble } from "../parts/ui";
import { Link, useLocation } from "../router";
import { useMay } from "../session";
import { Ago } from "../times";

const useFiles = () => useQuery({ queryKey: ["workflow-files"], queryFn: () => get<Files>("/workflow-files") });

export function Editor() {
  const files = useFiles();
  const may = useMay("admin");
  const [isNew, setNew] = useState(false);
  const [act, setAct] = useState<FileAct | null>(null);
  const folder = files.data?.folder ?? null;
  const [open] = useState(drafted);
  const begun = open.filter((path) => files.data && !files.data.items.some((file) => file.path === path));
  return (
    <>
      <Head title="Editor" under={folder === null ? "Workflow files, drawn and written." : <>Workflow files in <code>{folder}</code>, drawn and written.</>}>
        {may && folder !== null && (
          <Button kind="main" onClick={() => setNew(true)}>
            New file
          </Button>
        )}
      </Head>
      {files.error && <Trouble error={files.error} retry={() => void files.refetch()} />}
      {files.isPending && <Loading lines={6} />}
      {files.data && folder === null && (
        <Panel>
          <Empty title="This application has no folder of workflow files">
            Name one, and start the server again: <code>App(&quot;shop&quot;, workflow_folder=&quot;workflows&quot;)</code>, or set <code>TIDEMILL_WORKFLOW_FOLDER</code>.
          </Empty>
        </Panel>
      )}
      {folder !== null && begun.length > 0 && (
        <p className="row">
          Begun in this browser, and never saved:
          {begun.map((path) => (
            <Link key={path} to={pageOf(path)}>
              {path}
            </Link>
          ))}
        </p>
      )}
      {files.data && folder !== null && (
        <Panel>
          {files.data.items.length === 0 ? (
            <Empty title="The folder is empty">{may ? "Begin a file with the button above." : "Somebody with the scope admin can begin a file here."}</Empty>
          ) : (
            <Table label="Files" heads={["File", "What it is", { name: "Name", kind: "wide-only" }, num("Nodes"), "Can it work", { name: "Size", kind: "num wide-only" }, "Changed"]} acts={may}>
              {files.data.items.map((file) => (
                <tr key={file.path}>
                  <td>{file.trouble ? file.path : <Link to={pageOf(file.path)}>{file.path}</Link>} {open.includes(file.path) && <Tag tone="wait">not saved</Tag>}</td>
                  <td className="nowrap">
                    <Tag>{file.form ?? "no workflow"}</Tag> {file.mode && <span className="soft">{file.mode}</span>}
                  </td>
                  <td className="wide-only">{file.name}</td>
                  <td className="num">{file.nodes}</td>
                  <td>{file.trouble ? <span className="soft">{file.trouble}</span> : file.errors ? <Tag tone="bad">{file.errors} wrong</Tag> : <Tag tone="ok">yes</Tag>}</td>
                  <td className="num wide-only">{bytes(file.size)}</td>
                  <td className="nowrap">
                    <Ago at={file.changed_at} />
                  </td>
                  {may && (
                    <Acts>
                      <Button className="small" aria-label={`Rename ${file.path}`} onClick={() => setAct({ verb: "rename", path: file.path })}>
                        Rename
                      </Button>
                      <Button className="small" kind="danger" aria-label={`Delete ${file.path}`} onClick={() => setAct({ verb: "delete", path: file.path })}>
                        Delete
                      </Button>
                    </Acts>
                  )}
                </tr>
              ))}
            </Table>
          )}
        </Panel>
      )}
      {act && <FileActDialog key={`${act.verb} ${act.path}`} act={act} files={files.data?.items.map((file) => file.path) ?? []} onDone={() => setAct(null)} onClose={() => setAct(null)} />}
      {isNew && <NewFile taken={files.data?.items.map((file) => file.path) ?? []} onClose={() => setNew(false)} />}
    </>
  );
}

export function EditorPage({ id }: { id: string }) {
  const { query } = useLocation();
  const wanted = query.get("new");
  const kinds = useQuery({ queryKey: ["workflow-kinds"], queryFn: () => get<Kinds>("/workflow-kinds"), staleTime: 60_000 });
  const files = useFiles();
  const file = useQuery({ queryKey: ["workflow-file", id], queryFn: () => get<WorkFile>(fileUrl(id)), refetchInterval: 8000, retry: false });
  const { refetch } = file;
  const reload = useCallback(() => void refetch(), [refetch]);
  const isNone = file.error instanceof Problem && file.error.status === 404;
  if (kinds.error) return <Trouble error={kinds.error} retry={() => void kinds.refetch()} />;
  if (file.error && !file.data && !(isNone && (isBeginning(wanted) || keptDraft(id)))) {
    return (
      <>
        <Head title={id} />
        <Trouble error={file.error} retry={reload} />
        <p className="below">
          <Link to="/editor">All workflow files</Link>
        </p>
      </>
    );
  }
  if (!kinds.data || (file.isPending && !isNone)) return <Loading lines={10} />;
  return <Workbench path={id} file={file.data ?? null} first={isBeginning(wanted) ? begin(wanted, id) : ""} kinds={kinds.data} files={files.data?.items.map((each) => each.path) ?? []} onReload={reload} />;
}
