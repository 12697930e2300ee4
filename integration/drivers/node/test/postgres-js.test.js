// postgres.js (pipelined, statements prepared by itself) through the shim.

import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { after, before, beforeEach, test } from 'node:test'

import postgres from 'postgres'

import { CROWD, DEADLINE_MS, SMALL_USER, eventually, range } from './place.js'

const limits = { timeout: DEADLINE_MS * 2 }
const options = { onnotice: () => {}, idle_timeout: 0, connect_timeout: DEADLINE_MS / 1000 }
let sql

before(async () => {
  sql = postgres({ ...options, max: 1 })
  await sql`DROP TABLE IF EXISTS js_items`
  await sql`CREATE TABLE js_items (id int PRIMARY KEY, name text)`
})

beforeEach(() => sql`TRUNCATE js_items`, limits)

after(async () => {
  await sql`DROP TABLE js_items`
  await sql.end()
})

test('types come back as they went', limits, async () => {
  const moment = new Date('2026-02-28T23:59:59.999Z')
  const [row] = await sql`
    SELECT ${1}::int AS i, ${'9223372036854775807'}::bigint AS b, ${1.5}::float8 AS f,
           ${true}::bool AS t, ${null}::text AS n, ${"ü\t'\\"}::text AS s,
           ${Buffer.from([0, 255])}::bytea AS y, ${moment}::timestamptz AS m,
           ${[1, 2, 3]}::int[] AS a, ${sql.json({ a: [1, null] })}::jsonb AS j`
  assert.deepEqual({ ...row }, {
    i: 1, b: '9223372036854775807', f: 1.5, t: true, n: null, s: "ü\t'\\",
    y: Buffer.from([0, 255]), m: moment, a: [1, 2, 3], j: { a: [1, null] },
  })
})

test('types of arrays and own types are asked for', limits, async () => {
  await sql`CREATE TYPE js_mood AS ENUM ('good', 'bad')`
  const [row] = await sql`SELECT ${'bad'}::js_mood AS mood, ARRAY['good']::js_mood[] AS moods`
  assert.equal(row.mood, 'bad')
  await sql`DROP TYPE js_mood`
})

test('statements are prepared once and described', limits, async () => {
  for (const n of range(50)) {
    const [row] = await sql`SELECT ${n}::int * 2 AS twice`
    assert.equal(row.twice, n * 2)
  }
  const described = await sql`SELECT ${1}::int AS a, 'x'::text AS b`.describe()
  assert.deepEqual(described.columns.map((c) => [c.name, c.type]), [['a', 23], ['b', 25]])
  assert.deepEqual(described.types, [23])
})

test('without preparation the unnamed statement is used', limits, async () => {
  const unprepared = postgres({ ...options, max: 1, prepare: false })
  for (const n of range(20)) {
    const [row] = await unprepared`SELECT ${n}::int AS n`
    assert.equal(row.n, n)
  }
  await unprepared.end()
})

test('queries in flight at once are answered in order', limits, async () => {
  const rows = await Promise.all(range(300).map((n) => sql`SELECT ${n}::int AS n`))
  assert.deepEqual(rows.map(([row]) => row.n), range(300))
})

test('an error in the middle of a pipeline is one error', limits, async () => {
  const answers = await Promise.allSettled(
    range(30).map((n) => sql`SELECT 10 / ${n % 10}::int AS n`))
  assert.deepEqual(
    answers.map((a) => (a.status === 'fulfilled' ? a.value[0].n : a.reason.code)),
    range(30).map((n) => (n % 10 === 0 ? '22012' : Math.trunc(10 / (n % 10)))))
})

test('transactions with savepoints', limits, async () => {
  await sql.begin(async (tx) => {
    await tx`INSERT INTO js_items VALUES (1, 'outer')`
    await assert.rejects(tx.savepoint(async (inner) => {
      await inner`INSERT INTO js_items VALUES (2, 'inner')`
      await inner`INSERT INTO js_items VALUES (1, 'again')`
    }), { code: '23505' })
    await tx.savepoint('named', (inner) => inner`INSERT INTO js_items VALUES (3, 'after')`)
  })
  await assert.rejects(sql.begin('isolation level serializable', async (tx) => {
    await tx`INSERT INTO js_items VALUES (4, 'lost')`
    throw new Error('no')
  }), /no/)
  const [row] = await sql`SELECT array_agg(id ORDER BY id) AS ids FROM js_items`
  assert.deepEqual(row.ids, [1, 3])
})

test('a transaction may be one pipeline', limits, async () => {
  const results = await sql.begin((tx) => range(50).map(
    (n) => tx`INSERT INTO js_items ${tx({ id: n, name: `row ${n}` })} RETURNING id`))
  assert.deepEqual(results.map(([row]) => row.id), range(50))
})

test('rows are inserted in bulk', limits, async () => {
  const rows = range(1000).map((n) => ({ id: n, name: `row ${n}` }))
  await sql`INSERT INTO js_items ${sql(rows)}`
  const [row] = await sql`SELECT count(*)::int AS n FROM js_items WHERE id IN ${sql(range(10))}`
  assert.equal(row.n, 10)
})

test('several statements in one simple query', limits, async () => {
  const results = await sql`
    INSERT INTO js_items VALUES (1, 'a'), (2, 'b'); SELECT name FROM js_items; SELECT 3 AS n
  `.simple()
  assert.deepEqual(results.flatMap((rows) => rows.map((row) => ({ ...row }))),
    [{ name: 'a' }, { name: 'b' }, { n: 3 }])
})

test('copy in and out', limits, async () => {
  // Fewer bytes than a stream holds: the driver pauses its socket for a reader that lags, and does
  // not resume it when the last row is among what the reader has yet to take.
  const lines = range(1000).map((n) => `${n}\tname ${n}\n`)
  await pipeline(Readable.from(lines), await sql`COPY js_items FROM STDIN`.writable())
  const chunks = []
  const out = await sql`COPY (SELECT * FROM js_items ORDER BY id) TO STDOUT`.readable()
  for await (const chunk of out) chunks.push(chunk)
  assert.equal(Buffer.concat(chunks).toString(), lines.join(''))
})

test('cursors are portals with row limits', limits, async () => {
  const seen = []
  await sql`SELECT generate_series(1, ${100}::int) AS n`.cursor(7, (rows) => {
    seen.push(...rows.map((row) => row.n))
  })
  assert.deepEqual(seen, range(100).map((n) => n + 1))
  for await (const [row] of sql`SELECT generate_series(1, 100000) AS n`.cursor()) {
    if (row.n === 10) break
  }
  assert.equal((await sql`SELECT 1 AS one`)[0].one, 1)
})

test('rows are given one by one', limits, async () => {
  let sum = 0
  await sql`SELECT generate_series(1, 1000) AS n`.forEach((row) => { sum += row.n })
  assert.equal(sum, 500_500)
})

test('cancel ends the query', limits, async () => {
  const query = sql`SELECT pg_sleep(60)`
  const answer = query.catch((error) => error)
  let ended = false
  answer.then(() => { ended = true })
  const watcher = postgres({ ...options, max: 1 })
  await eventually(async () => {
    const [row] = await watcher`SELECT count(*)::int AS n FROM pg_stat_activity
      WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'`
    return row.n > 0
  })
  query.cancel()
  await eventually(() => ended)
  assert.equal((await answer).code, '57014')
  assert.equal((await sql`SELECT 1 AS one`)[0].one, 1)
  await watcher.end()
})

test('errors have all their fields', limits, async () => {
  await sql`INSERT INTO js_items VALUES (1, 'a')`
  await assert.rejects(sql`INSERT INTO js_items VALUES (${1}, 'b')`, {
    severity: 'ERROR',
    code: '23505',
    detail: 'Key (id)=(1) already exists.',
    schema_name: 'public',
    table_name: 'js_items',
    constraint_name: 'js_items_pkey',
    routine: '_bt_check_unique',
  })
  await assert.rejects(sql`SELECT nam FROM js_items`, { position: '8', code: '42703' })
})

test('a changed table is seen', limits, async () => {
  await sql`CREATE TABLE js_shape (a int)`
  try {
    await sql`INSERT INTO js_shape VALUES (1)`
    const shape = () => sql`SELECT * FROM js_shape`
    assert.deepEqual({ ...(await shape())[0] }, { a: 1 })
    await sql`ALTER TABLE js_shape ADD COLUMN b int DEFAULT 2`
    // The driver prepares again after the error that its own statement gets.
    assert.deepEqual({ ...(await shape())[0] }, { a: 1, b: 2 })
  } finally {
    await sql`DROP TABLE js_shape`
  }
})

test('notifications arrive after their commit', limits, async () => {
  const got = []
  const listener = postgres(options)
  const { unlisten } = await listener.listen('js_news', (payload) => got.push(payload))
  await sql.begin(async (tx) => {
    await tx`SELECT pg_notify('js_news', 'rolled back')`
    throw new Error('no')
  }).catch(() => {})
  await sql.notify('js_news', 'first')
  await sql`SELECT pg_notify('js_news', 'second')`
  await eventually(() => got.length >= 2)
  assert.deepEqual(got, ['first', 'second'])
  await unlisten()
  await listener.end()
})

test('notices arrive', limits, async () => {
  const got = []
  const talker = postgres({ ...options, max: 1, onnotice: (n) => got.push(n.message) })
  await talker`DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$`
  assert.deepEqual(got, ['one', 'two'])
  await talker.end()
})

test('settings of the connection follow it', limits, async () => {
  const connection = { work_mem: '9MB', search_path: 'pg_catalog' }
  const first = postgres({ ...options, max: 1, connection })
  for (const _ of range(10)) {
    assert.equal((await first`SHOW work_mem`)[0].work_mem, '9MB')
    assert.notEqual((await sql`SHOW work_mem`)[0].work_mem, '9MB')
  }
  assert.equal((await first`SHOW search_path`)[0].search_path, 'pg_catalog')
  await first.end()
})

test('many connections on a small pool', limits, async () => {
  const crowd = postgres({ ...options, user: SMALL_USER, max: CROWD })
  await Promise.all(range(CROWD).map((number) => (async () => {
    for (const step of range(10)) {
      const asked = number * 1000 + step
      const [row] = await crowd.begin(
        (tx) => tx`SELECT ${asked}::int AS asked, ${String(number)}::text AS number`)
      assert.deepEqual({ ...row }, { asked, number: String(number) })
    }
  })()))
  await crowd.end()
})
