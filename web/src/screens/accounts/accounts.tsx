/** Accounts: your role, the browsers that are logged in, and the tokens of programs. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, postQuery, remove } from "../../api/client";
import type { BrowserSession, List, Token } from "../../api/types";
import { useAction } from "../../api/use-action";
import { useMay, useSession } from "../../app/session";
import { Button } from "../../components/button";
import { Confirm, Dialog } from "../../components/dialog";
import { Empty, ErrorMessage, LoadStatus } from "../../components/feedback";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { RowActions, Table } from "../../components/lists/table";
import { State, Tag } from "../../components/state";
import { Ago } from "../../components/times";
import "./accounts.css";
import { Credentials } from "./credentials";

const ROLES = [
  { name: "viewer", may: "view everything but tokens" },
  { name: "operator", may: "act on jobs, runs, queues and workers" },
  { name: "editor", may: "also save workflow files that run no commands" },
  { name: "admin", may: "also tokens, sessions, retention, and files that run commands" },
] as const;

export function Accounts() {
  const session = useSession();
  const isAdmin = useMay("admin");
  const isOperator = useMay("operator");
  return (
    <>
      <PageHeader title="Accounts" />
      <div className="columns slim">
        <div className="stack">
          <Sessions />
          {isAdmin ? <Tokens /> : <Panel title="Tokens"><Empty title="Tokens need the role admin">{session.read_only ? "This server is read-only." : `Your role is ${session.role}. Ask an admin for a token.`}</Empty></Panel>}
          {isOperator && <Credentials />}
        </div>
        <div className="stack">
          <Panel title="You">
            <dl className="facts">
              <Fact name="Account">{session.name}</Fact>
              <Fact name="Role">{session.role && <RoleTag role={session.role} />}</Fact>
              <Fact name="For">{session.only ? `application ${session.only}` : "all applications"}</Fact>
            </dl>
          </Panel>
          <Panel title="Roles">
            <dl className="facts">
              {ROLES.map((role) => (
                <Fact key={role.name} name={role.name}>
                  {role.may}
                </Fact>
              ))}
            </dl>
          </Panel>
        </div>
      </div>
    </>
  );
}

function RoleTag({ role, application }: { role: string; application?: string | null }) {
  const tone = role === "admin" ? "attention" : role === "viewer" ? "off" : "run";
  return (
    <Tag tone={tone}>
      {role}
      {application && ` of ${application}`}
    </Tag>
  );
}

function Sessions() {
  const session = useSession();
  const [ending, setEnding] = useState<BrowserSession | null>(null);
  const found = useQuery({ queryKey: ["sessions"], queryFn: () => get<List<BrowserSession>>("/sessions") });
  const end = useAction<BrowserSession>({
    request: (each) => remove(`/sessions/${each.id}`),
    message: (_, each) => `Ended session ${each.id} of ${each.name}.`,
    onSuccess: (_, each) => each.current && window.location.reload(),
  });
  return (
    <Panel title="Sessions" aside={<span className="faint">browsers that are logged in</span>}>
      <LoadStatus query={found} />
      {found.data?.items.length === 0 && <Empty title="No sessions">{session.login_required ? "No browser is logged in with your account." : "This server lets every process on its machine in without a log-in."}</Empty>}
      {found.data && found.data.items.length > 0 && (
        <Table label="Sessions" heads={["Account", "Role", "Browser", "Last used", "Expires", "Opened"]} hasActions>
          {found.data.items.map((each) => (
            <tr key={each.id}>
              <td className="account-name">
                {each.name} {each.current ? <span className="faint">this browser</span> : each.own && <span className="faint">you</span>}
              </td>
              <td>
                {Object.entries(each.grants).map(([application, role]) => (
                  <RoleTag key={application} role={role} application={application === "*" ? null : application} />
                ))}
              </td>
              <td title={each.agent ?? undefined}>
                {browserName(each.agent)} <span className="faint mono">{each.address}</span>
              </td>
              <td className="nowrap">
                <Ago at={each.used_at} />
              </td>
              <td className="nowrap">
                <Ago at={each.expires_at} />
              </td>
              <td className="nowrap">
                <Ago at={each.created_at} />
              </td>
              <RowActions>
                <Button kind="danger" className="small" aria-label={`End session ${each.id} of ${each.name}`} onClick={() => setEnding(each)}>
                  End
                </Button>
              </RowActions>
            </tr>
          ))}
        </Table>
      )}
      {ending && (
        <Confirm title={`End session ${ending.id} of ${ending.name}?`} verb="End session" act={() => end.mutateAsync(ending)} onClose={() => setEnding(null)}>
          {ending.current ? "This browser is logged out." : "That browser is logged out at its next request."}
        </Confirm>
      )}
    </Panel>
  );
}

/** A short name of a browser from its user agent. */
function browserName(agent: string | null): string {
  return /(Firefox|Edg|Chrome|Safari)\//.exec(agent ?? "")?.[1]?.replace("Edg", "Edge") ?? "Browser";
}

function Tokens() {
  const [creating, setCreating] = useState(false);
  const [revoking, setRevoking] = useState<Token | null>(null);
  const found = useQuery({ queryKey: ["tokens"], queryFn: () => get<List<Token>>("/tokens") });
  const revoke = useAction<Token>({ request: (token) => remove(`/tokens/${token.id}`), message: (_, token) => `Revoked token ${token.name}.` });
  return (
    <Panel
      title="Tokens"
      aside={
        <Button kind="main" className="small" onClick={() => setCreating(true)}>
          Create token
        </Button>
      }
    >
      <LoadStatus query={found} />
      {found.data?.items.length === 0 && <Empty title="No tokens yet">Programs, and people without another log-in, need a token. Its role says what it may do.</Empty>}
      {found.data && found.data.items.length > 0 && (
        <Table label="Tokens" heads={["Name", "Role", "State", "Last used", "Expires", "Created"]} hasActions>
          {found.data.items.map((token) => {
            const expired = token.expires_at !== null && Date.parse(token.expires_at) < Date.now();
            return (
              <tr key={token.id}>
                <td className="account-name">
                  {token.name} <span className="faint mono">…{token.hint}</span>
                </td>
                <td>
                  <RoleTag role={token.role} application={token.application} />
                </td>
                <td>{token.revoked_at ? <State state="revoked" /> : expired ? <State state="expired" /> : <State state="valid" />}</td>
                <td className="nowrap">
                  <Ago at={token.used_at} />
                </td>
                <td className="nowrap">{token.expires_at ? <Ago at={token.expires_at} /> : "never"}</td>
                <td>
                  <Ago at={token.created_at} /> <span className="faint">by {token.created_by}</span>
                </td>
                <RowActions>
                  {!token.revoked_at && !expired && (
                    <Button kind="danger" className="small" aria-label={`Revoke ${token.name}`} onClick={() => setRevoking(token)}>
                      Revoke
                    </Button>
                  )}
                </RowActions>
              </tr>
            );
          })}
        </Table>
      )}
      {creating && <CreateTokenDialog onClose={() => setCreating(false)} />}
      {revoking && (
        <Confirm title={`Revoke ${revoking.name}?`} verb="Revoke" act={() => revoke.mutateAsync(revoking)} onClose={() => setRevoking(null)}>
          Requests with this token are refused at once, and browsers that logged in with it are logged out. This cannot be undone.
        </Confirm>
      )}
    </Panel>
  );
}

function CreateTokenDialog({ onClose }: { onClose: () => void }) {
  const session = useSession();
  const [name, setName] = useState("");
  const [role, setRole] = useState("viewer");
  const [application, setApplication] = useState(session.only ?? "");
  const [lifetime, setLifetime] = useState("90d");
  const [secret, setSecret] = useState<string | null>(null);
  const action = useAction<void, { secret: string }>({
    request: () => postQuery<{ secret: string }>("/tokens", { name, role, application: application || null, expires_in: lifetime || null }),
    onSuccess: (made) => setSecret(made.secret),
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    action.mutate();
  };
  return (
    <Dialog title="Create token" onClose={onClose}>
      {secret ? (
        <>
          <p>Copy the token now. It is not shown again.</p>
          <div className="secret">{secret}</div>
          <footer>
            <Button kind="main" onClick={onClose}>
              Done
            </Button>
          </footer>
        </>
      ) : (
        <form className="form" onSubmit={submit}>
          <label>
            <span>Name</span>
            <input className="field" value={name} onChange={(event) => setName(event.target.value)} required maxLength={100} autoFocus placeholder="the person or program that uses it" />
          </label>
          <label>
            <span>Role</span>
            <select className="select" value={role} onChange={(event) => setRole(event.target.value)}>
              {ROLES.map((each) => (
                <option key={each.name} value={each.name}>
                  {each.name}: {each.may}
                </option>
              ))}
            </select>
          </label>
          <label>
            <span>Application</span>
            <select className="select" value={application} onChange={(event) => setApplication(event.target.value)}>
              {!session.only && <option value="">all applications</option>}
              {session.application && <option value={session.application}>{session.application}</option>}
            </select>
          </label>
          <label>
            <span>Expires after</span>
            <select className="select" value={lifetime} onChange={(event) => setLifetime(event.target.value)}>
              <option value="1d">1 day</option>
              <option value="30d">30 days</option>
              <option value="90d">90 days</option>
              <option value="365d">1 year</option>
              <option value="">never</option>
            </select>
          </label>
          {action.error && <ErrorMessage error={action.error} />}
          <Button kind="main" type="submit" busy={action.isPending}>
            Create
          </Button>
        </form>
      )}
    </Dialog>
  );
}
