import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Map;
import java.util.Objects;
import java.util.Properties;

/** Where the suite connects to, and what its tests are made of. */
class Support {
    private static final boolean SESSION_MODE =
        "session".equals(System.getenv("PGDOG_POOLER_MODE"));
    /** Clients at once on the small pool of three. In session mode a client keeps its server. */
    static final int CROWD = SESSION_MODE ? 3 : 30;
    /** No test is about time: this is only how long a broken one may hang. */
    static final int DEADLINE_S = 60;

    /** A test, or a part of one that must fail. */
    interface Test {
        void run() throws Exception;
    }

    /** Runs the tests, says what they did, and returns how many failed. */
    static int check(Map<String, Test> tests) throws SQLException {
        try (Connection c = connect()) {
            run(c, "DROP TABLE IF EXISTS jdbc_items");
            run(c, "CREATE TABLE jdbc_items (id int PRIMARY KEY, name text, s serial)");
        }
        int failed = 0;
        for (Map.Entry<String, Test> test : tests.entrySet()) {
            failed += check(test.getKey(), test.getValue());
        }
        try (Connection c = connect()) {
            run(c, "DROP TABLE jdbc_items");
        }
        System.out.println("jdbc: " + (tests.size() - failed) + " passed, " + failed + " failed");
        return failed;
    }

    private static int check(String name, Test test) throws SQLException {
        try (Connection c = connect()) {
            run(c, "TRUNCATE jdbc_items");
        }
        try {
            test.run();
            System.out.println("test " + name + " ... ok");
            return 0;
        } catch (Exception | AssertionError problem) {
            System.out.println("test " + name + " ... FAILED");
            problem.printStackTrace(System.out);
            return 1;
        }
    }

    static Connection connect(String... more) throws SQLException {
        return connectAs(System.getenv("PGUSER"), more);
    }

    static Connection connectAs(String user, String... more) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", user);
        properties.setProperty("password", System.getenv("PGPASSWORD"));
        properties.setProperty("socketTimeout", String.valueOf(2 * DEADLINE_S));
        for (int i = 0; i < more.length; i += 2) {
            properties.setProperty(more[i], more[i + 1]);
        }
        String url = "jdbc:postgresql://" + System.getenv("PGHOST") + ":" + System.getenv("PGPORT")
            + "/" + System.getenv("PGDATABASE");
        return DriverManager.getConnection(url, properties);
    }

    static void run(Connection c, String sql) throws SQLException {
        try (Statement statement = c.createStatement()) {
            statement.execute(sql);
        }
    }

    static String value(Connection c, String sql) throws SQLException {
        try (Statement statement = c.createStatement();
            ResultSet rows = statement.executeQuery(sql)) {
            rows.next();
            return rows.getString(1);
        }
    }

    static void equal(Object got, Object wanted) {
        if (!Objects.deepEquals(got, wanted)) {
            throw new AssertionError("got " + got + ", wanted " + wanted);
        }
    }

    static SQLException refused(Test test, String state) throws Exception {
        try {
            test.run();
        } catch (SQLException refusal) {
            if (!state.equals(refusal.getSQLState())) {
                throw refusal;
            }
            return refusal;
        }
        throw new AssertionError("no error " + state);
    }
}
