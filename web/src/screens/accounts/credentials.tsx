/** Credentials of workflow files: store, replace and delete them. Their values are never shown. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, put, remove } from "../../api/client";
import type { List, Schemas } from "../../api/types";
import { useAction } from "../../api/use-action";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Confirm, Dialog } from "../../components/dialog";
import { Empty, LoadStatus } from "../../components/feedback";
import { Panel } from "../../components/layout";
import { RowActions, Table } from "../../components/lists/table";
import { Tag } from "../../components/state";
import { Ago } from "../../components/times";

type Credential = Schemas["Credential"];

export function Credentials() {
  const isAdmin = useMay("admin");
  const [setting, setSetting] = useState<string | null>(null);
  const [deleting, setDeleting] = useState<string | null>(null);
  const found = useQuery({ queryKey: ["credentials"], queryFn: () => get<List<Credential>>("/credentials") });
  const drop = useAction<string>({ request: (name) => remove(`/credentials/${encodeURIComponent(name)}`), message: (_, name) => `Deleted credential ${name}.` });
  return (
    <Panel
      title="Credentials"
      aside={
        isAdmin ? (
          <Button className="small" onClick={() => setSetting("")}>
            Set credential
          </Button>
        ) : (
          <span className="faint">secrets of workflow files</span>
        )
      }
    >
      <LoadStatus query={found} />
      {found.data?.items.length === 0 && <Empty title="No credentials">Secrets that workflow files name, such as a token for a service. They are stored encrypted.</Empty>}
      {found.data && found.data.items.length > 0 && (
        <Table label="Credentials" heads={["Name", "Fields", "Key", "Changed", "By"]} hasActions={isAdmin}>
          {found.data.items.map((each) => (
            <tr key={each.name}>
              <td className="account-name">
                {each.name} {!each.readable && <Tag tone="wait">no key here</Tag>}
              </td>
              <td>{each.fields.join(", ")}</td>
              <td className="mono">{each.key_id}</td>
              <td className="nowrap">
                <Ago at={each.changed_at} />
              </td>
              <td>{each.changed_by}</td>
              {isAdmin && (
                <RowActions>
                  <Button className="small" aria-label={`Replace credential ${each.name}`} onClick={() => setSetting(each.name)}>
                    Replace
                  </Button>
                  <Button kind="danger" className="small" aria-label={`Delete credential ${each.name}`} onClick={() => setDeleting(each.name)}>
                    Delete
                  </Button>
                </RowActions>
              )}
            </tr>
          ))}
        </Table>
      )}
      {setting !== null && <SetCredential name={setting} onClose={() => setSetting(null)} />}
      {deleting !== null && (
        <Confirm title={`Delete credential ${deleting}?`} verb="Delete credential" act={() => drop.mutateAsync(deleting)} onClose={() => setDeleting(null)}>
          Nodes that name it fail from now on.
        </Confirm>
      )}
    </Panel>
  );
}

function SetCredential({ name: first, onClose }: { name: string; onClose: () => void }) {
  const [name, setName] = useState(first);
  const [fields, setFields] = useState([{ name: "token", value: "" }]);
  const save = useAction<void, Credential>({
    request: () => put(`/credentials/${encodeURIComponent(name.trim())}`, { fields: Object.fromEntries(fields.filter((each) => each.name.trim()).map((each) => [each.name.trim(), each.value])) }),
    message: (made) => `Stored credential ${made.name}.`,
    onSuccess: onClose,
  });
  const change = (at: number, part: Partial<{ name: string; value: string }>) => setFields(fields.map((each, index) => (index === at ? { ...each, ...part } : each)));
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate();
  };
  return (
    <Dialog title={first ? `Replace credential ${first}` : "Set credential"} onClose={onClose}>
      <form className="form" onSubmit={submit}>
        <label>
          <span>Name</span>
          <input className="field mono" value={name} disabled={first !== ""} autoComplete="off" required onChange={(event) => setName(event.target.value)} />
        </label>
        {fields.map((each, at) => (
          <div key={at} className="row">
            <input className="field mono" aria-label={`Name of field ${at + 1}`} value={each.name} autoComplete="off" onChange={(event) => change(at, { name: event.target.value })} />
            <input className="field mono grow" type="password" aria-label={`Value of field ${at + 1}`} value={each.value} autoComplete="new-password" onChange={(event) => change(at, { value: event.target.value })} />
          </div>
        ))}
        <div>
          <Button className="small" onClick={() => setFields([...fields, { name: "", value: "" }])}>
            Add field
          </Button>
        </div>
        <p className="soft">Values are encrypted before they are stored, and never shown again.</p>
        <footer>
          <Button onClick={onClose}>Close</Button>
          <Button kind="main" type="submit" busy={save.isPending} disabled={!name.trim() || !fields.some((each) => each.name.trim())}>
            Store
          </Button>
        </footer>
      </form>
    </Dialog>
  );
}
