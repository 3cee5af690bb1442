// The whole job with a generated client: dispatch, see the conditions, register, poll, ack, renew, report.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Problem = components["schemas"]["Problem"];

const api = createClient<paths>({ baseUrl: "http://127.0.0.1:8080" });

function must<T>(answer: { data?: T; error?: Problem }): T {
  if (answer.data === undefined) throw new Error(`${answer.error?.code}: ${answer.error?.action}`);
  return answer.data;
}

const run = must(
  await api.POST("/v1/runs", { body: { dag_name: "etl", run_id: "r-1", worker_selector: { zone: "b" } } }),
);
for (const condition of run.conditions ?? []) console.log(condition.type, condition.status, condition.reason);

const path = { worker_id: "w-1" };
const session = must(
  await api.PUT("/v1/workers/{worker_id}", { params: { path }, body: { labels: { zone: "b" }, slots: 1 } }),
);
const { tasks } = must(
  await api.POST("/v1/workers/{worker_id}/poll", {
    params: { path },
    body: { session_id: session.session_id, max_tasks: 1, wait_seconds: 20 },
  }),
);
for (const task of tasks) {
  const attempt = { params: { path: { attempt_id: task.attempt_id } } };
  const lease = must(await api.POST("/v1/attempts/{attempt_id}/ack", { ...attempt, body: { token: task.token } }));
  console.log(lease.lease_until);
  must(await api.POST("/v1/attempts/{attempt_id}/renew", { ...attempt, body: { token: task.token } }));
  must(
    await api.POST("/v1/attempts/{attempt_id}/report", {
      ...attempt,
      body: { token: task.token, status: "succeeded", output: { rows: 3 } },
    }),
  );
}
const finished = must(
  await api.GET("/v1/dags/{dag_name}/runs/{run_id}", {
    params: { path: { dag_name: "etl", run_id: run.run_id }, query: { wait_for: "finished", wait_seconds: 10 } },
  }),
);
console.log(finished.status);
