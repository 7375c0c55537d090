// BookKeeper's own Java client, told line by line what to do.
//
//   java … Ledgers zk+longhierarchical://HOST:PORT/ledgers
//
// A line is a protocol (v2 or v3), a verb and its words; each is answered by one line: "ok" and what
// came of it, or "error" and the name of the exception.
//
//   create DIGEST PASSWORD E W A           ok LEDGER; it stays open
//   add LEDGER COUNT PREFIX                ok LAST; entries are PREFIX-0, PREFIX-1, …
//   close LEDGER                           ok
//   read LEDGER DIGEST PASSWORD            ok LAST LENGTH TEXT,TEXT,…; fences and recovers
//   peek LEDGER DIGEST PASSWORD            the same without recovery, up to what is confirmed
//   state LEDGER                           ok STATE METADATA (as they are in ZooKeeper, in hex)

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;

public final class Ledgers {
    private static final Map<Long, LedgerHandle> OPEN = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        Map<String, BookKeeper> clients = new HashMap<>();
        for (String protocol : List.of("v2", "v3")) {
            ClientConfiguration configuration = new ClientConfiguration();
            configuration.setMetadataServiceUri(arguments[0]);
            configuration.setUseV2WireProtocol(protocol.equals("v2"));
            configuration.setAddEntryTimeout(4);
            configuration.setReadEntryTimeout(4);
            clients.put(protocol, new BookKeeper(configuration));
        }
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ", -1);
            try {
                System.out.println("ok " + run(clients.get(words[0]), words));
            } catch (Exception error) {
                System.out.println("error " + error.getClass().getSimpleName());
            }
        }
        System.exit(0);
    }

    private static String run(BookKeeper client, String[] words) throws Exception {
        switch (words[1]) {
            case "create": {
                LedgerHandle made = client.createLedger(
                        Integer.parseInt(words[4]),
                        Integer.parseInt(words[5]),
                        Integer.parseInt(words[6]),
                        DigestType.valueOf(words[2]),
                        words[3].getBytes(StandardCharsets.UTF_8),
                        Map.of("made by", "Java".getBytes(StandardCharsets.UTF_8)));
                OPEN.put(made.getId(), made);
                return String.valueOf(made.getId());
            }
            case "add": {
                long last = -1;
                for (int number = 0; number < Integer.parseInt(words[3]); number++) {
                    byte[] data = (words[4] + "-" + number).getBytes(StandardCharsets.UTF_8);
                    last = OPEN.get(Long.parseLong(words[2])).addEntry(data);
                }
                return String.valueOf(last);
            }
            case "close":
                OPEN.remove(Long.parseLong(words[2])).close();
                return "";
            case "read":
            case "peek":
                return read(client, words);
            case "state": {
                long ledger = Long.parseLong(words[2]);
                LedgerMetadata metadata = client.getLedgerManager()
                        .readLedgerMetadata(ledger).get().getValue();
                byte[] bytes = new LedgerMetadataSerDe().serialize(metadata);
                return metadata.getState() + " " + HexFormat.of().formatHex(bytes);
            }
            default:
                throw new IllegalArgumentException(words[1]);
        }
    }

    private static String read(BookKeeper client, String[] words) throws Exception {
        long ledger = Long.parseLong(words[2]);
        DigestType digest = DigestType.valueOf(words[3]);
        byte[] password = words[4].getBytes(StandardCharsets.UTF_8);
        try (LedgerHandle opened = words[1].equals("read")
                ? client.openLedger(ledger, digest, password)
                : client.openLedgerNoRecovery(ledger, digest, password)) {
            List<String> found = new ArrayList<>();
            long last = opened.getLastAddConfirmed();
            if (last >= 0) {
                Enumeration<LedgerEntry> entries = opened.readEntries(0, last);
                while (entries.hasMoreElements()) {
                    byte[] data = entries.nextElement().getEntry();
                    found.add(new String(data, StandardCharsets.UTF_8));
                }
            }
            return last + " " + opened.getLength() + " " + String.join(",", found);
        }
    }
}
