import org.apache.pulsar.metadata.api.MetadataStoreConfig;
import org.apache.pulsar.metadata.api.extended.MetadataStoreExtended;

/** Removes a standalone broker's registrations of bookies from its metadata, whose URL is the argument. */
public class Unlock {
    public static void main(String[] args) throws Exception {
        try (var store = MetadataStoreExtended.create(args[0], MetadataStoreConfig.builder().build())) {
            for (String bookie : store.getChildren("/ledgers/available").get()) {
                String path = "/ledgers/available/" + bookie;
                if (store.getChildren(path).get().isEmpty()) {  // not the directory of read-only ones
                    store.delete(path, java.util.Optional.empty()).get();
                    System.out.println(path);
                }
            }
        }
    }
}
