/** The list of workflow files, and the page that edits one of them. */
import { useQuery } from "@tanstack/react-query";
import { useCallback, useMemo, useRef, useState } from "react";
import { get, Problem } from "../../api/client";
import type { List, Schemas } from "../../api/types";
import { Link, useLocation } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Empty, ErrorMessage, Loading, LoadStatus } from "../../components/feedback";
import { bytes, plural } from "../../components/format";
import { PageHeader, Panel } from "../../components/layout";
import { num, RowActions, Table } from "../../components/lists/table";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";
import { listDrafts, readDraft } from "./files/drafts";
import { type FileAct, FileActDialog } from "./files/file-dialogs";
import { isTemplate, NewFile, newFileText } from "./files/new-file";
import { editorUrl, fileUrl } from "./files/paths";
import type { Files, Kinds, WorkFile } from "./types";
import { Workbench } from "./workbench";

const useFiles = () => useQuery({ queryKey: ["workflow-files"], queryFn: () => get<Files>("/workflow-files") });

export function Editor() {
  const files = useFiles();
  const may = useMay("editor");
  const [isNew, setNew] = useState(false);
  const [act, setAct] = useState<FileAct | null>(null);
  const folder = files.data?.folder ?? null;
  const [open] = useState(listDrafts);
  const unsavedNew = open.filter((path) => files.data && !files.data.items.some((file) => file.path === path));
  return (
    <>
      <PageHeader title="Editor" subtitle={folder === null ? "Workflow files, edited as a diagram or as text." : <>Workflow files in <code>{folder}</code>, edited as a diagram or as text.</>}>
        {may && folder !== null && (
          <Button kind="main" onClick={() => setNew(true)}>
            New file
          </Button>
        )}
      </PageHeader>
      <LoadStatus query={files} lines={6} />
      {files.data && folder === null && (
        <Panel>
          <Empty title="This application has no folder for workflow files">
            Set one and restart the server: <code>App(&quot;shop&quot;, workflow_folder=&quot;workflows&quot;)</code>, or set <code>TIDEMILL_WORKFLOW_FOLDER</code>.
          </Empty>
        </Panel>
      )}
      {folder !== null && unsavedNew.length > 0 && (
        <p className="row">
          Unsaved new files in this browser:
          {unsavedNew.map((path) => (
            <Link key={path} to={editorUrl(path)}>
              {path}
            </Link>
          ))}
        </p>
      )}
      {files.data && folder !== null && (
        <Panel>
          {files.data.items.length === 0 ? (
            <Empty title="The folder is empty">{may ? "Create a file with the button above." : "Creating files needs the role editor."}</Empty>
          ) : (
            <Table label="Files" heads={["File", "Format", { name: "Name", kind: "wide-only" }, num("Nodes"), "Check", { name: "Size", kind: "num wide-only" }, "Changed"]} hasActions={may}>
              {files.data.items.map((file) => (
                <tr key={file.path}>
                  <td>{file.trouble ? file.path : <Link to={editorUrl(file.path)}>{file.path}</Link>} {open.includes(file.path) && <Tag tone="wait">unsaved changes</Tag>}</td>
                  <td className="nowrap">
                    <Tag>{file.form ?? "cannot be read"}</Tag> {file.mode && <span className="soft">{file.mode}</span>}
                  </td>
                  <td className="wide-only">{file.name}</td>
                  <td className="num">{file.nodes}</td>
                  <td>{file.trouble ? <span className="soft">{file.trouble}</span> : file.errors ? <Tag tone="bad">{plural(file.errors, "error")}</Tag> : <Tag tone="ok">valid</Tag>}</td>
                  <td className="num wide-only">{bytes(file.size)}</td>
                  <td className="nowrap">
                    <Ago at={file.changed_at} />
                  </td>
                  {may && (
                    <RowActions>
                      <Button className="small" aria-label={`Rename ${file.path}`} onClick={() => setAct({ verb: "rename", path: file.path })}>
                        Rename
                      </Button>
                      <Button className="small" kind="danger" aria-label={`Delete ${file.path}`} onClick={() => setAct({ verb: "delete", path: file.path })}>
                        Delete
                      </Button>
                    </RowActions>
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

const isNotFound = (error: unknown): boolean => error instanceof Problem && error.status === 404;

export function EditorPage({ id }: { id: string }) {
  const { query } = useLocation();
  const wanted = query.get("new");
  const kinds = useQuery({ queryKey: ["workflow-kinds"], queryFn: () => get<Omit<Kinds, "credentials">>("/workflow-kinds"), staleTime: 60_000 });
  // Only an operator may see their names; for others the field has no suggestions.
  const credentials = useQuery({ queryKey: ["credentials"], queryFn: () => get<List<Schemas["Credential"]>>("/credentials"), enabled: useMay("operator"), staleTime: 60_000 });
  const files = useFiles();
  const file = useQuery({ queryKey: ["workflow-file", id], queryFn: () => get<WorkFile>(fileUrl(id)), refetchInterval: 8000, retry: false });
  const known = useMemo(() => kinds.data && { ...kinds.data, credentials: credentials.data?.items.map((each) => each.name) ?? [] }, [kinds.data, credentials.data]);
  const { refetch } = file;
  const reload = useCallback(() => void refetch(), [refetch]);
  // While a missing file is requested again its error is gone: the editor of a new file must stay as it is.
  const missing = useRef<string | null>(null);
  if (file.data || (file.error && !isNotFound(file.error))) missing.current = null;
  else if (isNotFound(file.error)) missing.current = id;
  const isMissing = missing.current === id;
  if (kinds.error) return <LoadStatus query={kinds} />;
  if (file.error && !file.data && !(isMissing && (isTemplate(wanted) || readDraft(id)))) {
    return (
      <>
        <PageHeader title={id} />
        <ErrorMessage error={file.error} retry={reload} />
        <p className="below">
          <Link to="/editor">All workflow files</Link>
        </p>
      </>
    );
  }
  if (!known || (file.isPending && !isMissing)) return <Loading lines={10} />;
  return <Workbench path={id} file={file.data ?? null} first={isTemplate(wanted) ? newFileText(wanted, id) : ""} kinds={known} files={files.data?.items.map((each) => each.path) ?? []} onReload={reload} />;
}
