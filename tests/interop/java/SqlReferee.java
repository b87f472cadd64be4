import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

/**
 * What RocketMQ's own filters say about expressions; needs no broker.
 *
 * <p>Each line on stdin is one JSON request with a field {@code do}; it is answered on stdout by a line for each
 * case and then by one line that holds {@code done} or {@code error}. A case is answered with {@code refused} when it
 * does not compile. The arguments are ignored. Ends at end of input.
 */
public final class SqlReferee {
    private SqlReferee() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            answers.println(answer(JSON.parseObject(line), answers));
        }
    }

    private static JSONObject answer(JSONObject question, PrintStream answers) {
        boolean bySql = "sql".equals(question.getString("do"));
        JSONArray cases = question.getJSONArray("cases");
        for (int i = 0; i < cases.size(); i++) {
            JSONObject one = cases.getJSONObject(i);
            answers.println(bySql ? evaluated(one) : tagsOf(one.getString("text")));
        }
        return JSONObject.of("done", true);
    }

    private static JSONObject evaluated(JSONObject one) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(one.getString("text"));
        } catch (MQFilterException refused) {
            return JSONObject.of("refused", true);
        }
        Map<String, String> properties = new HashMap<>();
        JSONObject given = one.getJSONObject("properties");
        for (String name : given.keySet()) {
            properties.put(name, given.getString(name));
        }
        return JSONObject.of("matches", matches(compiled, properties));
    }

    /** The broker delivers a message only for true, and swallows whatever the evaluation throws. */
    private static boolean matches(Expression compiled, Map<String, String> properties) {
        try {
            return Boolean.TRUE.equals(compiled.evaluate(new MessageEvaluationContext(properties)));
        } catch (Exception failed) {
            return false;
        }
    }

    private static JSONObject tagsOf(String text) {
        SubscriptionData built;
        try {
            built = FilterAPI.buildSubscriptionData("Topic", text);
        } catch (Exception refused) {
            return JSONObject.of("refused", true);
        }
        boolean everything = SubscriptionData.SUB_ALL.equals(built.getSubString());
        return JSONObject.of("everything", everything, "tags", built.getTagsSet(), "codes", built.getCodeSet());
    }
}
