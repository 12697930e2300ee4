// Where the suites connect to. Both drivers read PGHOST, PGPORT, PGUSER, PGPASSWORD and PGDATABASE
// themselves; they name the shim, or a server when a test itself is in doubt.

export const SMALL_USER = process.env.PGDOG_SMALL_USER ?? process.env.PGUSER
const SESSION_MODE = process.env.PGDOG_POOLER_MODE === 'session'
// Clients at once on the small pool of three. In session mode a client keeps its server.
export const CROWD = SESSION_MODE ? 3 : 30
// No test is about time: this is only how long a broken one may hang.
export const DEADLINE_MS = 60_000

export const range = (n) => Array.from({ length: n }, (_, i) => i)

// What is true within the deadline, or the test fails.
export async function eventually(condition) {
  const end = Date.now() + DEADLINE_MS
  while (!(await condition())) {
    if (Date.now() > end) throw new Error(`not within ${DEADLINE_MS} ms: ${condition}`)
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}
