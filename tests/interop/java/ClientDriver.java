import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * The official Java client's producers, consumers and admin tool in one JVM, steered line by line.
 *
 * <p>{@code java ClientDriver NAMESRV BROKER}: each line on stdin is one JSON request with a field {@code do};
 * it is answered on stdout by any number of JSON lines and then by exactly one line that holds
 * {@code done} or {@code error}. Nothing else is ever written to stdout. Ends at end of input.
 *
 * <p>Clients are opened under a name and live until they are closed under it; what a consumer's
 * listener is given is kept until it is asked for. What a story means is for the asker to know.
 */
public final class ClientDriver {
    /** Where the lines of the answer in hand go. */
    interface Answer {
        void say(JSONObject line);
    }

    private final PrintStream out;
    private final DriverProducers producers;
    private final DriverListeners listeners;
    private final DriverPulls pulls;
    private final DriverAdmin admin;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);  // the client and its libraries may print; answers stay clean
        new ClientDriver(args[0], args[1], out).answerAll();
        System.exit(0);  // the client's threads would keep the JVM alive
    }

    private ClientDriver(String namesrv, String broker, PrintStream out) throws Exception {
        this.out = out;
        producers = new DriverProducers(namesrv);
        listeners = new DriverListeners(namesrv, producers);
        pulls = new DriverPulls(namesrv);
        admin = new DriverAdmin(namesrv, broker);
    }

    private void answerAll() throws Exception {
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            try {
                JSONObject request = JSON.parseObject(line);
                answer(request);
                say(new JSONObject().fluentPut("done", request.getString("do")));
            } catch (Throwable refused) {
                refused.printStackTrace();
                say(new JSONObject().fluentPut("error", DriverJson.told(refused)));
            }
        }
    }

    /** Requests are named after who answers them: {@code producer.open}, {@code push.received}, … */
    private void answer(JSONObject request) throws Exception {
        String[] who = request.getString("do").split("\\.", 2);
        switch (who[0]) {
            case "producer": producers.answer(who[1], request, this::say); break;
            case "push": listeners.answer(who[1], request, this::say); break;
            case "lite":
            case "pull": pulls.answer(who[0], who[1], request, this::say); break;
            case "admin": admin.answer(who[1], request, this::say); break;
            default: throw new IllegalArgumentException("unknown request " + request);
        }
    }

    private void say(JSONObject line) {
        out.println(line.toJSONString(JSONWriter.Feature.WriteMapNullValue));
    }
}
