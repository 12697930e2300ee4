import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.StringReader;
import java.io.StringWriter;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.sql.Array;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Types;
import java.time.LocalDate;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.copy.CopyManager;
import org.postgresql.util.PSQLException;
import org.postgresql.util.ServerErrorMessage;

/**
 * The JDBC driver through the shim.
 *
 * Every test is a method in the table of main; the last line counts them.
 */
public final class DriverSuite extends Support {
    public static void main(String[] arguments) throws Exception {
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("types in text and binary", DriverSuite::types);
        tests.put("statements become named after five runs", DriverSuite::namedStatements);
        tests.put("a changed table is seen", DriverSuite::changedTable);
        tests.put("batches", DriverSuite::batches);
        tests.put("a failed batch", DriverSuite::failedBatch);
        tests.put("transactions with savepoints", DriverSuite::savepoints);
        tests.put("autosave in a transaction", DriverSuite::autosave);
        tests.put("several statements in one query", DriverSuite::severalStatements);
        tests.put("simple query mode", DriverSuite::simpleMode);
        tests.put("fetch size makes portals", DriverSuite::fetchSize);
        tests.put("declared cursors", DriverSuite::declaredCursor);
        tests.put("copy in and out", DriverSuite::copy);
        tests.put("a copy aborted by either side", DriverSuite::brokenCopy);
        tests.put("cancel ends the query", DriverSuite::cancel);
        tests.put("a query timeout ends the query", DriverSuite::queryTimeout);
        tests.put("errors have all their fields", DriverSuite::errorFields);
        tests.put("notices become warnings", DriverSuite::notices);
        tests.put("notifications arrive after their commit", DriverSuite::notifications);
        tests.put("metadata of tables and results", DriverSuite::metadata);
        tests.put("generated keys", DriverSuite::generatedKeys);
        tests.put("large objects", DriverSuite::largeObjects);
        tests.put("settings follow their client", DriverSuite::settings);
        tests.put("many connections on a small pool", DriverSuite::crowd);

        int failed = check(tests);
        System.exit(failed == 0 ? 0 : 1);
    }

    private static void types() throws Exception {
        // prepareThreshold -1: binary from the first run on.
        for (String threshold : List.of("0", "-1")) {
            try (Connection c = connect("prepareThreshold", threshold);
                PreparedStatement p = c.prepareStatement(
                    "SELECT ?::int, ?::bigint, ?::float8, ?::numeric, ?::bool, ?::text, ?::text,"
                        + " ?::bytea, ?::timestamptz, ?::date, ?::uuid, ?::int[]")) {
                OffsetDateTime moment =
                    OffsetDateTime.of(2026, 2, 28, 23, 59, 59, 999_999_000, ZoneOffset.UTC);
                UUID key = UUID.fromString("00000000-0000-4000-8000-000000000001");
                Array array = c.createArrayOf("int4", new Integer[] {1, null, 3});
                Object[] values = {
                    -7, Long.MIN_VALUE, 0.25, new BigDecimal("12345678901234567890.00100"), true,
                    null, "\u00fc\t'\\", new byte[] {0, (byte) 255}, moment,
                    LocalDate.of(1999, 12, 31), key, array,
                };
                for (int i = 0; i < values.length; i++) {
                    if (values[i] == null) {
                        p.setNull(i + 1, Types.VARCHAR);
                    } else {
                        p.setObject(i + 1, values[i]);
                    }
                }
                try (ResultSet row = p.executeQuery()) {
                    row.next();
                    for (int i = 0; i < 8; i++) {
                        equal(row.getObject(i + 1), values[i]);
                    }
                    equal(row.getObject(9, OffsetDateTime.class), moment);
                    equal(row.getObject(10, LocalDate.class), values[9]);
                    equal(row.getObject(11), key);
                    equal(row.getArray(12).getArray(), new Integer[] {1, null, 3});
                }
            }
        }
    }

    private static void namedStatements() throws Exception {
        try (Connection c = connect("preparedStatementCacheQueries", "4");
            PreparedStatement p = c.prepareStatement("SELECT ?::int * 2")) {
            for (int n = 0; n < 50; n++) {
                p.setInt(1, n);
                try (ResultSet row = p.executeQuery()) {
                    row.next();
                    equal(row.getInt(1), n * 2);
                }
                // More texts than the driver keeps: it closes the oldest.
                try (PreparedStatement q = c.prepareStatement("SELECT " + n % 9 + " + ?::int")) {
                    q.setInt(1, 1);
                    try (ResultSet row = q.executeQuery()) {
                        row.next();
                        equal(row.getInt(1), n % 9 + 1);
                    }
                }
            }
        }
    }

    private static void changedTable() throws Exception {
        try (Connection c = connect("prepareThreshold", "1")) {
            run(c, "DROP TABLE IF EXISTS jdbc_shape; CREATE TABLE jdbc_shape (a int)");
            run(c, "INSERT INTO jdbc_shape VALUES (1)");
            for (int columns = 1; columns < 4; columns++) {
                try (PreparedStatement p = c.prepareStatement("SELECT * FROM jdbc_shape");
                    ResultSet row = p.executeQuery()) {
                    equal(row.getMetaData().getColumnCount(), columns);
                }
                run(c, "ALTER TABLE jdbc_shape ADD COLUMN c" + columns + " int");
            }
            run(c, "DROP TABLE jdbc_shape");
        }
    }

    private static void batches() throws Exception {
        for (String rewrite : List.of("false", "true")) {
            try (Connection c = connect("reWriteBatchedInserts", rewrite)) {
                run(c, "TRUNCATE jdbc_items");
                c.setAutoCommit(false);
                try (PreparedStatement p =
                    c.prepareStatement("INSERT INTO jdbc_items VALUES (?, ?)")) {
                    for (int n = 0; n < 2000; n++) {
                        p.setInt(1, n);
                        p.setString(2, "row " + n);
                        p.addBatch();
                    }
                    equal(p.executeBatch().length, 2000);
                }
                c.commit();
                try (Statement s = c.createStatement()) {
                    s.addBatch("UPDATE jdbc_items SET name = 'x' WHERE id < 10");
                    s.addBatch("DELETE FROM jdbc_items WHERE name = 'x'");
                    equal(s.executeBatch(), new int[] {10, 10});
                }
                c.commit();
                equal(value(c, "SELECT count(*) FROM jdbc_items"), "1990");
            }
        }
    }

    private static void failedBatch() throws Exception {
        try (Connection c = connect()) {
            c.setAutoCommit(false);
            try (PreparedStatement p =
                c.prepareStatement("INSERT INTO jdbc_items VALUES (?, 'x')")) {
                for (int n : new int[] {1, 2, 1, 3}) {
                    p.setInt(1, n);
                    p.addBatch();
                }
                SQLException refusal = refused(p::executeBatch, "23505");
                equal(((BatchUpdateException) refusal).getUpdateCounts().length > 0, true);
            }
            refused(() -> run(c, "SELECT 1"), "25P02");
            c.rollback();
            equal(value(c, "SELECT count(*) FROM jdbc_items"), "0");
        }
    }

    private static void savepoints() throws Exception {
        try (Connection c = connect()) {
            c.setAutoCommit(false);
            c.setTransactionIsolation(Connection.TRANSACTION_SERIALIZABLE);
            run(c, "INSERT INTO jdbc_items VALUES (1, 'outer')");
            Savepoint a = c.setSavepoint("a");
            run(c, "INSERT INTO jdbc_items VALUES (2, 'inner')");
            Savepoint b = c.setSavepoint();
            refused(() -> run(c, "INSERT INTO jdbc_items VALUES (1, 'again')"), "23505");
            c.rollback(b);
            c.releaseSavepoint(b);
            c.rollback(a);
            run(c, "INSERT INTO jdbc_items VALUES (3, 'after')");
            equal(value(c, "SHOW transaction_isolation"), "serializable");
            c.commit();
            c.setReadOnly(true);
            refused(() -> run(c, "INSERT INTO jdbc_items VALUES (4, 'no')"), "25006");
            c.rollback();
            equal(value(c, "SELECT array_agg(id ORDER BY id) FROM jdbc_items"), "{1,3}");
            c.rollback();
        }
    }

    private static void autosave() throws Exception {
        try (Connection c = connect("autosave", "always")) {
            c.setAutoCommit(false);
            for (int n = 0; n < 10; n++) {
                run(c, "INSERT INTO jdbc_items VALUES (" + n + ", 'x')");
                refused(() -> run(c, "SELECT 1/0"), "22012");
            }
            c.commit();
            equal(value(c, "SELECT count(*) FROM jdbc_items"), "10");
        }
    }

    private static void severalStatements() throws Exception {
        try (Connection c = connect(); Statement s = c.createStatement()) {
            equal(s.execute("INSERT INTO jdbc_items VALUES (1, 'a'); SELECT name FROM jdbc_items;"
                + "DELETE FROM jdbc_items"), false);
            equal(s.getUpdateCount(), 1);
            equal(s.getMoreResults(), true);
            equal(s.getMoreResults(), false);
            equal(s.getUpdateCount(), 1);
            refused(() -> run(c, "INSERT INTO jdbc_items VALUES (1, 'a'); SELECT 1/0"), "22012");
            equal(value(c, "SELECT count(*) FROM jdbc_items"), "0");
        }
    }

    private static void simpleMode() throws Exception {
        for (String mode : List.of("simple", "extendedForPrepared", "extendedCacheEverything")) {
            try (Connection c = connect("preferQueryMode", mode);
                PreparedStatement p = c.prepareStatement("SELECT ?::int + 1")) {
                for (int n = 0; n < 10; n++) {
                    p.setInt(1, n);
                    try (ResultSet row = p.executeQuery()) {
                        row.next();
                        equal(row.getInt(1), n + 1);
                    }
                    equal(value(c, "SELECT " + n), String.valueOf(n));
                }
            }
        }
    }

    private static void fetchSize() throws Exception {
        try (Connection c = connect()) {
            c.setAutoCommit(false);
            try (PreparedStatement p = c.prepareStatement("SELECT generate_series(1, ?)")) {
                p.setInt(1, 1000);
                p.setFetchSize(7);
                try (ResultSet rows = p.executeQuery()) {
                    for (int n = 1; n <= 1000; n++) {
                        rows.next();
                        equal(rows.getInt(1), n);
                        if (n % 100 == 0) {
                            equal(value(c, "SELECT 'between'"), "between");
                        }
                    }
                    equal(rows.next(), false);
                }
            }
            c.commit();
        }
    }

    private static void declaredCursor() throws Exception {
        try (Connection c = connect()) {
            c.setAutoCommit(false);
            run(c, "DECLARE held SCROLL CURSOR WITH HOLD FOR SELECT generate_series(1, 100)");
            c.commit();
            equal(value(c, "FETCH ABSOLUTE 50 FROM held"), "50");
            equal(value(c, "FETCH BACKWARD 1 FROM held"), "49");
            run(c, "CLOSE held");
            c.commit();
        }
    }

    private static void copy() throws Exception {
        try (Connection c = connect()) {
            CopyManager copies = c.unwrap(PGConnection.class).getCopyAPI();
            StringBuilder text = new StringBuilder();
            for (int n = 0; n < 10_000; n++) {
                text.append(n).append("\tname ").append(n).append('\n');
            }
            String into = "COPY jdbc_items (id, name) FROM STDIN";
            equal(copies.copyIn(into, new StringReader(text.toString())), 10_000L);
            StringWriter out = new StringWriter();
            copies.copyOut("COPY (SELECT id, name FROM jdbc_items ORDER BY id) TO STDOUT", out);
            equal(out.toString(), text.toString());
            ByteArrayOutputStream binary = new ByteArrayOutputStream();
            copies.copyOut("COPY jdbc_items TO STDOUT (FORMAT binary)", binary);
            run(c, "TRUNCATE jdbc_items");
            copies.copyIn("COPY jdbc_items FROM STDIN (FORMAT binary)",
                new ByteArrayInputStream(binary.toByteArray()));
            equal(value(c, "SELECT count(*) FROM jdbc_items"), "10000");
        }
    }

    private static void brokenCopy() throws Exception {
        try (Connection c = connect()) {
            CopyManager copies = c.unwrap(PGConnection.class).getCopyAPI();
            String into = "COPY jdbc_items (id, name) FROM STDIN";
            refused(() -> copies.copyIn(into, new StringReader("1\ta\nx\tb\n")), "22P02");
            var writing = copies.copyIn(into);
            byte[] row = "1\ta\n".getBytes(StandardCharsets.UTF_8);
            writing.writeToCopy(row, 0, row.length);
            writing.cancelCopy();
            equal(value(c, "SELECT count(*) FROM jdbc_items"), "0");
        }
    }

    private static void cancel() throws Exception {
        ExecutorService threads = Executors.newSingleThreadExecutor();
        try (Connection c = connect(); Connection other = connect();
            Statement s = c.createStatement()) {
            Future<?> victim = threads.submit(() -> s.execute("SELECT pg_sleep(60)"));
            // A cancel that comes before the query is void, and the driver sends only one.
            while (!"1".equals(value(other, "SELECT count(*) FROM pg_stat_activity"
                + " WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"))) {
                Thread.sleep(20);
            }
            s.cancel();
            try {
                victim.get();
                throw new AssertionError("not cancelled");
            } catch (java.util.concurrent.ExecutionException refusal) {
                equal(((SQLException) refusal.getCause()).getSQLState(), "57014");
            }
            equal(value(c, "SELECT 1"), "1");
        } finally {
            threads.shutdown();
        }
    }

    private static void queryTimeout() throws Exception {
        try (Connection c = connect(); Statement s = c.createStatement()) {
            s.setQueryTimeout(1);
            refused(() -> s.execute("SELECT pg_sleep(60)"), "57014");
            equal(value(c, "SELECT 1"), "1");
        }
    }

    private static void errorFields() throws Exception {
        try (Connection c = connect()) {
            run(c, "INSERT INTO jdbc_items VALUES (1, 'a')");
            SQLException refusal =
                refused(() -> run(c, "INSERT INTO jdbc_items VALUES (1, 'b')"), "23505");
            ServerErrorMessage fields = ((PSQLException) refusal).getServerErrorMessage();
            equal(fields.getSeverity(), "ERROR");
            equal(fields.getDetail(), "Key (id)=(1) already exists.");
            equal(fields.getSchema(), "public");
            equal(fields.getTable(), "jdbc_items");
            equal(fields.getConstraint(), "jdbc_items_pkey");
            equal(fields.getRoutine(), "_bt_check_unique");
            refusal = refused(() -> run(c, "SELECT nam FROM jdbc_items"), "42703");
            equal(((PSQLException) refusal).getServerErrorMessage().getPosition(), 8);
        }
    }

    private static void notices() throws Exception {
        try (Connection c = connect(); Statement s = c.createStatement()) {
            s.execute("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$");
            equal(s.getWarnings().getMessage(), "one");
            equal(s.getWarnings().getNextWarning().getMessage(), "two");
        }
    }

    private static void notifications() throws Exception {
        try (Connection listener = connect(); Connection speaker = connect()) {
            run(listener, "LISTEN jdbc_news");
            speaker.setAutoCommit(false);
            run(speaker, "NOTIFY jdbc_news, 'rolled back'");
            speaker.rollback();
            run(speaker, "NOTIFY jdbc_news, 'first'");
            speaker.commit();
            run(speaker, "SELECT pg_notify('jdbc_news', 'second')");
            speaker.commit();
            List<String> got = new ArrayList<>();
            long end = System.nanoTime() + DEADLINE_S * 1_000_000_000L;
            while (got.size() < 2 && System.nanoTime() < end) {
                PGNotification[] news =
                    listener.unwrap(PGConnection.class).getNotifications(1000);
                Arrays.stream(news == null ? new PGNotification[0] : news)
                    .forEach(n -> got.add(n.getName() + " " + n.getParameter()));
            }
            equal(got, List.of("jdbc_news first", "jdbc_news second"));
            run(listener, "UNLISTEN *");
        }
    }

    private static void metadata() throws Exception {
        try (Connection c = connect()) {
            List<String> columns = new ArrayList<>();
            try (ResultSet rows = c.getMetaData().getColumns(null, "public", "jdbc_items", null)) {
                while (rows.next()) {
                    columns.add(rows.getString("COLUMN_NAME") + " " + rows.getString("TYPE_NAME"));
                }
            }
            equal(columns, List.of("id int4", "name text", "s serial"));
            try (ResultSet rows = c.getMetaData().getPrimaryKeys(null, "public", "jdbc_items")) {
                rows.next();
                equal(rows.getString("COLUMN_NAME"), "id");
            }
            String query = "SELECT * FROM jdbc_items WHERE id = ?";
            try (PreparedStatement p = c.prepareStatement(query)) {
                equal(p.getMetaData().getColumnTypeName(2), "text");
                equal(p.getParameterMetaData().getParameterTypeName(1), "int4");
            }
            equal(c.isValid(DEADLINE_S), true);
        }
    }

    private static void generatedKeys() throws Exception {
        try (Connection c = connect(); PreparedStatement p = c.prepareStatement(
            "INSERT INTO jdbc_items (id, name) VALUES (?, ?)", new String[] {"id", "s"})) {
            p.setInt(1, 5);
            p.setString(2, "x");
            equal(p.executeUpdate(), 1);
            try (ResultSet keys = p.getGeneratedKeys()) {
                keys.next();
                equal(keys.getInt("id"), 5);
            }
        }
    }

    private static void largeObjects() throws Exception {
        try (Connection c = connect()) {
            c.setAutoCommit(false);
            var api = c.unwrap(PGConnection.class).getLargeObjectAPI();
            long oid = api.createLO();
            byte[] bytes = new byte[3 << 20];
            Arrays.fill(bytes, (byte) 7);
            // The driver calls functions by oid (the FunctionCall message).
            try (var object = api.open(oid)) {
                object.write(bytes);
            }
            c.commit();
            try (var object = api.open(oid)) {
                equal(Arrays.equals(object.read(4 << 20), bytes), true);
            }
            api.delete(oid);
            c.commit();
        }
    }

    private static void settings() throws Exception {
        try (Connection first = connect("options", "-c work_mem=9MB");
            Connection second = connect()) {
            run(second, "SET work_mem = '7MB'");
            second.setSchema("pg_catalog");
            first.setNetworkTimeout(Runnable::run, DEADLINE_S * 1000);
            for (int n = 0; n < 10; n++) {
                equal(value(first, "SHOW work_mem"), "9MB");
                equal(value(second, "SHOW work_mem"), "7MB");
                equal(second.getSchema(), "pg_catalog");
            }
            second.setClientInfo("ApplicationName", "jdbc suite");
            equal(value(second, "SHOW application_name"), "jdbc suite");
        }
    }

    private static void crowd() throws Exception {
        String small = System.getenv().getOrDefault("PGDOG_SMALL_USER", System.getenv("PGUSER"));
        ExecutorService threads = Executors.newFixedThreadPool(CROWD);
        List<Future<?>> work = new ArrayList<>();
        for (int client = 0; client < CROWD; client++) {
            int number = client;
            work.add(threads.submit(() -> {
                try (Connection c = connectAs(small); PreparedStatement p =
                    c.prepareStatement("SELECT ?::int, ?::text")) {
                    c.setAutoCommit(false);
                    for (int step = 0; step < 10; step++) {
                        p.setInt(1, number * 1000 + step);
                        p.setString(2, String.valueOf(number));
                        try (ResultSet row = p.executeQuery()) {
                            row.next();
                            equal(row.getInt(1), number * 1000 + step);
                            equal(row.getString(2), String.valueOf(number));
                        }
                        c.commit();
                    }
                    return null;
                }
            }));
        }
        threads.shutdown();
        for (Future<?> one : work) {
            one.get();
        }
    }
}
