// A load of BookKeeper through its own Java client: for each case a ledger of its own (E=3, W=3,
// A=2, CRC32C, protocol v2), with so many adds in flight.
//
//   java … AddLoad zk+longhierarchical://HOST:PORT/ledgers IN_FLIGHT:BYTES:WARM_S:SECONDS …
//
// Prints a line of JSON for each case.

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;

public final class AddLoad {
    private static final int SAMPLES_MAX = 4_000_000;

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(arguments[0]);
        configuration.setUseV2WireProtocol(true);
        // By default the client holds itself to 5,000 adds per second.
        configuration.setThrottleValue(0);
        BookKeeper client = new BookKeeper(configuration);
        for (String each : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            String[] words = each.split(":");
            run(client, Integer.parseInt(words[0]), new byte[Integer.parseInt(words[1])],
                    Double.parseDouble(words[2]), Double.parseDouble(words[3]));
        }
        client.close();
        System.exit(0);
    }

    private static void run(
            BookKeeper client, int inFlight, byte[] data, double warm, double seconds)
            throws Exception {
        LedgerHandle ledger =
                client.createLedger(3, 3, 2, BookKeeper.DigestType.CRC32C, new byte[0]);
        add(ledger, inFlight, data, warm, new long[SAMPLES_MAX]);
        long[] samples = new long[SAMPLES_MAX];
        long cpu = cpu();
        long began = System.nanoTime();
        int count = add(ledger, inFlight, data, seconds, samples);
        double elapsed = (System.nanoTime() - began) / 1e9;
        double spent = (cpu() - cpu) / 1e9;
        ledger.close();
        int kept = Math.min(count, SAMPLES_MAX);
        Arrays.sort(samples, 0, kept);
        System.out.println(String.format(Locale.ROOT,
                "{\"count\": %d, \"elapsed_s\": %f, \"client_cpu_s\": %f, "
                        + "\"p50_ms\": %f, \"p99_ms\": %f}",
                count, elapsed, spent, samples[kept / 2] / 1e6, samples[kept * 99 / 100] / 1e6));
    }

    private static int add(
            LedgerHandle ledger, int inFlight, byte[] data, double seconds, long[] samples)
            throws Exception {
        Semaphore free = new Semaphore(inFlight);
        AtomicInteger count = new AtomicInteger();
        long end = System.nanoTime() + (long) (seconds * 1e9);
        for (long now = System.nanoTime(); now < end; now = System.nanoTime()) {
            free.acquire();
            long began = System.nanoTime();
            ledger.asyncAddEntry(data, (status, handle, entry, context) -> {
                if (status != BKException.Code.OK) {
                    System.err.println(BKException.getMessage(status));
                    Runtime.getRuntime().halt(1);
                }
                int place = count.getAndIncrement();
                if (place < samples.length) {
                    samples[place] = System.nanoTime() - began;
                }
                free.release();
            }, null);
        }
        free.acquire(inFlight);
        return count.get();
    }

    private static long cpu() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }
}
