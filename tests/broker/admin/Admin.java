import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Commands of pulsar-admin, one after the other, for the admin URL that is the argument. A line of stdin is the
 * words of a command as JSON; a line of stdout is {"code": its exit code, "out": ..., "err": what it wrote}.
 */
public class Admin extends PulsarAdminTool {
    Admin(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream told = System.out;
        Properties properties = new Properties();
        properties.setProperty("webServiceUrl", args[0]);
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setOut(new PrintStream(out, true));
        System.setErr(new PrintStream(err, true));
        Admin admin = new Admin(properties);  // takes longer than most commands
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            boolean success = admin.run(json.readValue(line, String[].class));
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("code", success ? 0 : 1);
            result.put("out", out.toString("UTF-8"));
            result.put("err", err.toString("UTF-8"));
            told.println(json.writeValueAsString(result));
            told.flush();
            out.reset();
            err.reset();
        }
        Runtime.getRuntime().halt(0);  // the admin clients have threads
    }
}
